"""Write the files for one start, and plan its commands."""

from __future__ import annotations

from pathlib import Path

from controlplane import components
from controlplane.components import Plan, Ports
from controlplane.kubeconfig import folder_name, kubeconfig
from controlplane.layout import Layout, write_private
from controlplane.pki import SERVICE_ADDRESS, Pki
from controlplane.ports import free_ports, require_free
from controlplane.settings import Settings

_USERS = {
    components.CONTROLLER_MANAGER: ("system:kube-controller-manager", ()),
    components.SCHEDULER: ("system:kube-scheduler", ()),
    components.KWOK: ("kwok", ("system:masters",)),
}


def choose_ports(fixed: int | None) -> Ports:
    """Choose free ports. Raises ControlPlaneError if the fixed one is taken."""
    if fixed is not None:
        require_free(fixed)
    api, etcd, etcd_peer, controller_manager, scheduler, kwok = free_ports(6)
    return Ports(
        api=fixed or api,
        etcd=etcd,
        etcd_peer=etcd_peer,
        controller_manager=controller_manager,
        scheduler=scheduler,
        kwok=kwok,
    )


def prepare(binaries: Path, layout: Layout, pki: Pki, ports: Ports, settings: Settings) -> Plan:
    """Write certificates, kubeconfigs and configuration files, and plan the commands."""
    layout.logs.mkdir(mode=0o700, exist_ok=True)
    kubeconfigs = {
        name: write_kubeconfig(layout, pki, ports, user, groups)
        for name, (user, groups) in _USERS.items()
    }
    write_private(
        layout.scheduler_config,
        components.scheduler_configuration(
            kubeconfigs[components.SCHEDULER], settings.scheduler_profiles
        ),
    )
    write_private(layout.audit_policy, components.audit_policy())
    return Plan(
        bin=binaries,
        layout=layout,
        ports=ports,
        ca=pki.ca,
        etcd_ca=pki.etcd_ca,
        front_ca=pki.front_ca,
        token_key=pki.token_key,
        token_public=pki.token_public,
        pairs={
            components.ETCD: pki.etcd(components.ETCD),
            components.API_SERVER: pki.server(
                components.API_SERVER,
                tuple(dict.fromkeys((components.LOOPBACK, SERVICE_ADDRESS, settings.address))),
            ),
            components.API_SERVER_CLIENT: pki.user_files(
                components.API_SERVER_CLIENT, ["system:masters"]
            ),
            components.FRONT_PROXY: pki.front_proxy(components.FRONT_PROXY),
            components.CONTROLLER_MANAGER: pki.server(components.CONTROLLER_MANAGER),
            components.SCHEDULER: pki.server(components.SCHEDULER),
        },
        kubeconfigs=kubeconfigs,
        stages=(*sorted((binaries.parent / "stages").glob("*.yaml")), *settings.stages),
        address=settings.address,
        audit=settings.audit,
        durable=settings.durable,
        extra_args=settings.extra_args,
    )


def write_kubeconfig(
    layout: Layout, pki: Pki, ports: Ports, user: str, groups: tuple[str, ...]
) -> Path:
    """Write a kubeconfig with a new client certificate, and return its path."""
    path = layout.users / folder_name(user, groups) / "kubeconfig"
    ca = pki.ca.certificate.read_bytes()
    write_private(path, kubeconfig(server_url(ports), ca, user, pki.client(user, groups)))
    return path


def server_url(ports: Ports) -> str:
    """Return the API server's URL."""
    return f"https://127.0.0.1:{ports.api}"
