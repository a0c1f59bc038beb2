"""KubeVirt in a control plane: virt-controller and virt-api, with their objects and RBAC."""

from controlplane.kubevirt.install import install
from controlplane.kubevirt.nodes import enable
from controlplane.kubevirt.programs import KWOK_VMI, VIRT_API, VIRT_CONTROLLER

__all__ = ["KWOK_VMI", "VIRT_API", "VIRT_CONTROLLER", "enable", "install"]
