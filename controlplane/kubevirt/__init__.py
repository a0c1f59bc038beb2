"""KubeVirt in a control plane: its own virt-controller and virt-api, its objects and rights."""

from controlplane.kubevirt.install import install
from controlplane.kubevirt.nodes import enable
from controlplane.kubevirt.programs import KWOK_VMI, VIRT_API, VIRT_CONTROLLER

__all__ = ["KWOK_VMI", "VIRT_API", "VIRT_CONTROLLER", "enable", "install"]
