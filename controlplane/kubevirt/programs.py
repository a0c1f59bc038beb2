"""KubeVirt's programs as components of a control plane, and a kwok in place of virt-handler."""

from __future__ import annotations

from pathlib import Path

from controlplane.api import Api
from controlplane.components import ONE_PROCESSOR
from controlplane.errors import ControlPlaneError
from controlplane.kubeconfig import token_kubeconfig
from controlplane.kubevirt.objects import NAMESPACE, VIRT_API_SERVICE
from controlplane.launcher import ControlPlane
from controlplane.layout import write_private
from controlplane.ports import answers, free_ports

VIRT_CONTROLLER = "virt-controller"
VIRT_API = "virt-api"
KWOK_VMI = "kwok-vmi"
"""The kwok in place of virt-handler; separate, so that the nodes' kwok ignores VMs."""

_STAGES = Path(__file__).resolve().parent / "stages.yaml"
_LAUNCHER_IMAGE = "quay.io/kubevirt/virt-launcher:v1.8.0"
_VIRT_HANDLER = f"system:serviceaccount:{NAMESPACE}:kubevirt-handler"
"""The user of that kwok: virt-api lets only KubeVirt's accounts change a VMI's status."""
_STOP_TIMEOUT = 0.5  # seconds; virt-api would wait five for a load balancer that does not exist
_TOKEN_SECONDS = 7 * 24 * 3600


def start_kwok(plane: ControlPlane) -> None:
    """Start a kwok for VMIs only: no node has the annotation that it selects nodes by."""
    (port,) = free_ports(1)
    command = [
        *ONE_PROCESSOR,
        str(plane.bin / "kwok"),
        f"--kubeconfig={plane.kubeconfig_for(_VIRT_HANDLER, ['system:masters'])}",
        f"--config={_STAGES}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=holdfast.dev/none=none",
        f"--server-address=127.0.0.1:{port}",
    ]
    plane.add(KWOK_VMI, command, lambda: answers(port), wait=False)


def start_virt_controller(plane: ControlPlane, binaries: Path) -> None:
    """Start virt-controller with the ServiceAccount that it has in every cluster."""
    (port,) = free_ports(1)
    pair = plane.certificate(VIRT_CONTROLLER)
    command = [
        str(binaries / VIRT_CONTROLLER),
        f"--kubeconfig={_account_kubeconfig(plane, 'kubevirt-controller')}",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--launcher-image={_LAUNCHER_IMAGE}",
        f"--prom-cert-file={pair.certificate}",
        f"--prom-key-file={pair.key}",
    ]
    api = Api(port, plane.ca)  # without client certificate: it accepts only another CA's
    plane.add(VIRT_CONTROLLER, command, lambda: _leads(api), wait=False)


def start_virt_api(plane: ControlPlane, binaries: Path) -> int:
    """Start virt-api with its ServiceAccount, and return its port."""
    (port,) = free_ports(1)
    pair = plane.certificate(VIRT_API, [f"{VIRT_API_SERVICE}.{NAMESPACE}.svc"])
    command = [
        str(binaries / VIRT_API),
        f"--kubeconfig={_account_kubeconfig(plane, 'kubevirt-apiserver')}",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--tls-cert-file={pair.certificate}",
        f"--tls-key-file={pair.key}",
        f"--handler-cert-file={pair.certificate}",
        f"--handler-key-file={pair.key}",
    ]
    plane.add(VIRT_API, command, lambda: answers(port), wait=False, stop_timeout=_STOP_TIMEOUT)
    return port


def _leads(api: Api) -> bool:
    """Return whether virt-controller is the leader: it does no work before that."""
    try:
        response = api.get("/leader")
    except ControlPlaneError:
        return False
    return response == {"apiserver": {"leader": "true"}}


def _account_kubeconfig(plane: ControlPlane, account: str) -> Path:
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    response = plane.api.create(path, request)
    if response is None:
        raise ControlPlaneError(f"ServiceAccount {NAMESPACE}/{account} does not exist")
    file = plane.directory / "users" / account / "kubeconfig"
    token, ca = response["status"]["token"], plane.ca.read_bytes()
    write_private(file, token_kubeconfig(plane.server, ca, account, token))
    return file
