"""The status page of a running controller, on the loopback address only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.webhook.errors import ApiStatusError, ClusterError
from holdfast.webhook.kube import listing
from holdfast.webhook.model import durations, kubevirt
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.model.kubevirt import Instance, TemplatedMachine
from holdfast.webhook.report import status_page, sticky_vms, table
from holdfast.webhook.report.status_page import MOST_ROWS, HeldPodRow, Status
from holdfast.webhook.report.sticky_vms import StickyVm
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.sticky.reconciler import ArgsForPod
from holdfast.webhook.telemetry.pages import PageServer, create_app

if TYPE_CHECKING:
    from holdfast.webhook.kube.client import Api
    from holdfast.webhook.runtime.controllers import Manager

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}
MOST_FREEZES = 5
_SECOND_MS = 1_000
_NOT_FOUND = 404
_log = logging.getLogger("holdfast.controller")

Sample = Callable[[str], float | None]
"""Gives the value of a metric."""


def server(port: int, mgr: Manager) -> PageServer:
    """Make the server of the status page. Raises StartError if the port cannot be bound."""

    def page() -> tuple[bytes, int, Mapping[str, str]]:
        return status_page.page(status(mgr)), 200, _HEADERS

    app = create_app({"/": page}, local=True)
    served = PageServer(LOOPBACK, port, app, option="--status-port")
    _log.info("status page: http://localhost:%d/", served.port)
    return served


def status(mgr: Manager) -> Status:
    """Collect what the page shows."""
    now_ms = int((mgr.server_time() or time.time()) * _SECOND_MS)
    held = []
    for key in mgr.releases:
        due = mgr.releases.get(key)
        if due is not None:
            note = "; ".join(filter(None, (due.reason, due.problem)))
            held.append(HeldPodRow(key, due.at_ms, note))
    found = [*facts(mgr.metrics.registry.get_sample_value, now_ms, synced=mgr.synced)]
    watch = mgr.releases.freeze_watch
    found.append(frozen(watch.freezes.active(now_ms), watch.unreadable))
    seen = None
    if mgr.sticky_args is not None:
        try:
            seen = machines(mgr.cluster, partial(pipelines.sticky_args, mgr.profiles))
        except ClusterError as exc:
            found.append(("VMs", f"cannot be listed: {exc}", False))
    return Status(mgr.cluster.server, now_ms, found, held, mgr.history.released(), seen)


def machines(api: Api, settings: ArgsForPod) -> Sequence[StickyVm] | None:
    """List the first VMs, one more than is shown; None without KubeVirt. Raises ClusterError."""
    most, api_path = MOST_ROWS + 1, kubevirt.API_PATH
    try:
        machines = listing.objects(api, f"{api_path}/virtualmachines", TemplatedMachine)
        known = [*islice(machines, most)]
        runs = listing.objects(api, f"{api_path}/virtualmachineinstances", Instance)
        instances = {one.key: one for one in islice(runs, most)}
    except ApiStatusError as exc:
        if exc.status == _NOT_FOUND:
            return None
        raise
    pairs = [(vm, instances.get(vm.key)) for vm in known]
    return [
        sticky_vms.described(vm, vmi, settings(sticky_vms.next_pod(vm, vmi))) for vm, vmi in pairs
    ]


def facts(sample: Sample, now_ms: int, *, synced: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield the name and value of each fact, and whether it is healthy."""
    leads = sample("holdfast_leader") == 1
    yield "This controller", "leader" if leads else "standby", True
    yield "Synced with the API server", "yes" if synced else "not yet", synced
    overdue = int(sample("holdfast_overdue_pods") or 0)
    yield "Overdue pods", str(overdue), not (leads and overdue)
    released = sample("holdfast_release_lateness_seconds_count") or 0
    if released:
        late = (sample("holdfast_release_lateness_seconds_sum") or 0) / released
        yield "Releases", f"{released:.0f}, {late:.3f} s late on average", True
    uncertainty = sample("holdfast_clock_uncertainty_seconds") or 0
    yield "Clock uncertainty", f"{uncertainty:.3f} s", True
    kept, back = (int(sample(f"holdfast_vm_pods_{name}") or 0) for name in ("kept", "kept_back"))
    yield "Sticky VM pods kept by the finalizer", str(kept), True
    yield "VMs waiting for their record", str(back), not back
    yield from _certificates(sample, now_ms, leads=leads)


def frozen(freezes: Sequence[Freeze], unreadable: str) -> tuple[str, str, bool]:
    """Return the fact about freezes."""
    if unreadable:
        return "Freezes", f"ignored: {unreadable}", False
    shown = [str(one) for one in freezes[:MOST_FREEZES]]
    if len(freezes) > MOST_FREEZES:
        shown.append(f"and {len(freezes) - MOST_FREEZES} more")
    return "Freezes", "; ".join(shown) or "none", not freezes


def _certificates(sample: Sample, now_ms: int, *, leads: bool) -> Iterator[tuple[str, str, bool]]:
    expiry = sample("holdfast_ca_expiry_timestamp_seconds")
    if not expiry:
        return  # this controller keeps none
    at_ms = int(expiry * _SECOND_MS)
    left = table.duration(at_ms - now_ms)
    yield "CA", f"valid until {durations.canonical_instant(at_ms)} ({left} left)", at_ms > now_ms
    registered = sample("holdfast_webhooks_registered") == 1
    if leads:
        yield "Webhooks", "registered" if registered else "not registered as configured", registered
