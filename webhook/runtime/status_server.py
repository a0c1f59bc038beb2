"""The status page of a running controller, on the loopback address only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.model import durations, kubevirt
from holdfast.webhook.model.annotations import HELD_LABEL, OWN_PREFIX
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.model.kubevirt import Instance, TemplatedMachine
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.report import held_pods, status_page, sticky_vms, table
from holdfast.webhook.report.doctor.diagnosis import Level
from holdfast.webhook.report.status_page import MOST_ROWS, Fact, HeldPodRow, Selection, Status
from holdfast.webhook.report.sticky_vms import StickyVm
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.sticky.reconciler import ArgsForPod
from holdfast.webhook.telemetry.pages import PageServer, create_app, query

if TYPE_CHECKING:
    from holdfast.webhook.kube.api import Api
    from holdfast.webhook.runtime.controllers import Manager

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}
MOST_FREEZES = 5
MOST_PODS = 1_000
"""Maximum held pods of a namespace whose owners a page shows; each refresh lists them."""
_SECOND_MS = 1_000
_log = logging.getLogger("holdfast.controller")

Sample = Callable[[str], float | None]
"""Returns the value of a metric."""


def server(port: int, mgr: Manager) -> PageServer:
    """Return the server of the status page. Raises StartError if the port cannot be bound."""

    def page() -> tuple[bytes, int, Mapping[str, str]]:
        parameters = query()
        selection = Selection(
            parameters.get("namespace", ""),
            parameters.get("owner", ""),
            bool(parameters.get("paused")),
        )
        return status_page.page(status(mgr, selection)), 200, _HEADERS

    app = create_app({"/": page}, local=True)
    page_server = PageServer(LOOPBACK, port, app, option="--status-port")
    _log.info("status page: http://localhost:%d/", page_server.port)
    return page_server


def status(mgr: Manager, selection: Selection) -> Status:
    """Return the content of the page, for the selected namespace or for all."""
    now_ms = int((mgr.server_time() or time.time()) * _SECOND_MS)
    page_facts = [*facts(mgr.metrics.registry.get_sample_value, now_ms, synced=mgr.synced)]
    watch = mgr.releases.freeze_watch
    page_facts.append(frozen(watch.freezes.active(now_ms), watch.unreadable))
    held = [*_held(mgr, selection.namespace)]
    if selection.namespace:
        try:
            owners = owners_of(mgr.cluster, selection.namespace)
            held = [replace(row, owner=owners.get(row.pod, "")) for row in held]
        except ClusterError as exc:
            page_facts.append(Fact("Owners", f"cannot be listed: {exc}", Level.WARNING))
    vms = None
    if pipelines.has_sticky(mgr.profiles):
        try:
            vms = machines(mgr.cluster, partial(pipelines.sticky_args, mgr.profiles))
        except ClusterError as exc:
            page_facts.append(Fact("VMs", f"cannot be listed: {exc}", Level.WARNING))
    return Status(
        mgr.cluster.server,
        now_ms,
        page_facts,
        held,
        mgr.recorder.released(),
        vms,
        paces=pipelines.count_paces(mgr.profiles),
        windows=pipelines.window_states(mgr.profiles, now_ms),
        selection=selection,
    )


def _held(mgr: Manager, namespace: str) -> Iterator[HeldPodRow]:
    for key in mgr.releases:
        if namespace in {"", key[0]} and (due := mgr.releases.get(key)) is not None:
            gates = (gate for gate in mgr.releases.gates(key) if gate.startswith(OWN_PREFIX))
            held_by = ", ".join(gate.removeprefix(OWN_PREFIX) for gate in gates)
            note = "; ".join(filter(None, (due.reason, due.problem)))
            yield HeldPodRow(key, due.at_ms, held_by, note)


def owners_of(api: Api, namespace: str) -> Mapping[ObjectKey, str]:
    """Return the owners of the first MOST_PODS held pods of a namespace. Raises ClusterError."""
    selectors = {"fieldSelector": listing.UNBOUND, "labelSelector": HELD_LABEL}
    pods = listing.objects(api, listing.pods_path(namespace), Pod, selectors)
    return {pod.key: held_pods.owner(pod) for pod in islice(pods, MOST_PODS)}


def machines(api: Api, settings: ArgsForPod) -> Sequence[StickyVm] | None:
    """Return the first VMs, one more than is shown; None without KubeVirt. Raises ClusterError."""
    limit = MOST_ROWS + 1
    try:
        all_vms = listing.objects(api, kubevirt.vm_path("", ""), TemplatedMachine)
        vms = [*islice(all_vms, limit)]
        vmis = listing.objects(api, kubevirt.vmi_path("", ""), Instance)
        instances = {vmi.key: vmi for vmi in islice(vmis, limit)}
    except ApiStatusError as exc:
        if exc.status == 404:
            return None
        raise
    pairs = [(vm, instances.get(vm.key)) for vm in vms]
    return [
        sticky_vms.described(vm, vmi, settings(sticky_vms.next_pod(vm, vmi))) for vm, vmi in pairs
    ]


def facts(sample: Sample, now_ms: int, *, synced: bool) -> Iterator[Fact]:
    """Yield each fact. Overdue pods and missing webhooks are problems only of the leader."""
    leads = sample("holdfast_leader") == 1
    yield Fact("This controller", "leader" if leads else "standby")
    yield Fact("Synced with the API server", *_judged("yes", "not yet", Level.WARNING, ok=synced))
    overdue = int(sample("holdfast_overdue_pods") or 0)
    yield Fact("Overdue pods", str(overdue), Level.PROBLEM if leads and overdue else Level.OK)
    released = sample("holdfast_release_lateness_seconds_count") or 0
    if released:
        lateness = (sample("holdfast_release_lateness_seconds_sum") or 0) / released
        yield Fact("Releases", f"{released:.0f}, {lateness:.3f} s late on average")
    uncertainty = sample("holdfast_clock_uncertainty_seconds") or 0
    yield Fact("Clock uncertainty", f"{uncertainty:.3f} s")
    kept, kept_back = (
        int(sample(f"holdfast_vm_pods_{name}") or 0) for name in ("kept", "kept_back")
    )
    yield Fact("Sticky VM pods kept by the finalizer", str(kept))
    yield Fact(
        "VMs waiting for their record", str(kept_back), Level.WARNING if kept_back else Level.OK
    )
    yield from _certificates(sample, now_ms, leads=leads)


def frozen(freezes: Sequence[Freeze], unreadable: str) -> Fact:
    """Return the fact about freezes."""
    if unreadable:
        return Fact("Freezes", f"ignored: {unreadable}", Level.PROBLEM)
    lines = [str(freeze) for freeze in freezes[:MOST_FREEZES]]
    if len(freezes) > MOST_FREEZES:
        lines.append(f"and {len(freezes) - MOST_FREEZES} more")
    return Fact("Freezes", *_judged("none", "; ".join(lines), Level.WARNING, ok=not freezes))


def _certificates(sample: Sample, now_ms: int, *, leads: bool) -> Iterator[Fact]:
    expiry = sample("holdfast_ca_expiry_timestamp_seconds")
    if not expiry:
        return  # this controller does not manage a CA
    at_ms = int(expiry * _SECOND_MS)
    text = f"valid until {durations.canonical_instant(at_ms)}"
    validity = f"{text} ({table.duration(at_ms - now_ms)} left)"
    yield Fact("CA", *_judged(validity, f"{text}, expired", Level.PROBLEM, ok=at_ms > now_ms))
    if leads:
        registered = sample("holdfast_webhooks_registered") == 1
        missing = "not registered as configured"
        yield Fact("Webhooks", *_judged("registered", missing, Level.PROBLEM, ok=registered))


def _judged(value: str, bad: str, level: Level, *, ok: bool) -> tuple[str, Level]:
    return (value, Level.OK) if ok else (bad, level)
