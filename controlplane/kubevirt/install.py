"""Install KubeVirt into a running control plane, and run its programs alongside it.

CRDs, roles, ServiceAccounts and webhook configurations come from KubeVirt's constructors. kwok
stands in for virt-handler, which needs virtual machines.
"""

from __future__ import annotations

from controlplane.build import ensure
from controlplane.kubevirt import objects, programs
from controlplane.kubevirt.nodes import enable_all
from controlplane.launcher import ControlPlane
from controlplane.modules import KUBEVIRT
from controlplane.progress import Report


def install(plane: ControlPlane, report: Report | None = None) -> None:
    """Install KubeVirt; on return, VMs can be created, and kwok's nodes accept them.

    Builds it first if it is not cached, and reports progress to `report`. Raises
    ControlPlaneError.
    """
    binaries = ensure(report, KUBEVIRT)
    manifests = objects.printed(binaries.parent)
    definitions = [manifest for manifest in manifests if manifest["kind"] == objects.DEFINITION]
    served = [manifest for manifest in manifests if manifest["kind"] in objects.SERVED]
    objects.remove(plane.api, served)
    namespace, kubevirt = objects.own()
    objects.create(plane.api, [namespace])
    rights = [
        manifest for manifest in manifests if manifest not in definitions and manifest not in served
    ]
    objects.create(plane.api, [*rights, objects.loopback_service(objects.VIRT_API_SERVICE)])
    port = programs.start_virt_api(plane, binaries)  # first: it needs seconds of CPU to start
    objects.create(plane.api, definitions)
    objects.await_definitions(plane.api, definitions)
    objects.create(plane.api, [kubevirt])
    programs.start_kwok(plane)
    programs.start_virt_controller(plane, binaries)
    enable_all(plane.api)
    for name in (programs.VIRT_API, programs.KWOK_VMI, programs.VIRT_CONTROLLER):
        plane.process(name).wait_ready()
    ca = plane.ca.read_bytes()
    objects.create(plane.api, [objects.served_at(manifest, port, ca) for manifest in served])
