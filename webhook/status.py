"""The status page of a running controller, on this machine's own address alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from webhook import reading, status_page, sticky_vms, tables, values, vms, wiring
from webhook.errors import ApiStatusError, ClusterError
from webhook.pages import PageServer
from webhook.records import Settings
from webhook.status_page import MOST_ROWS, Held, Status
from webhook.sticky_vms import StickyVm
from webhook.vms import Instance, TemplatedMachine

if TYPE_CHECKING:
    from webhook.cluster import Api
    from webhook.wiring import Assembly

LOOPBACK = "127.0.0.1"
_HTML = "text/html; charset=utf-8"
_SECOND_MS = 1_000
_NOT_FOUND = 404
_log = logging.getLogger("holdfast.controller")

Sample = Callable[[str], float | None]
"""Gives the value of a metric."""


def server(port: int, assembly: Assembly) -> PageServer:
    """Make the server of the page at `/`. Raises StartError where the port is taken."""

    def page() -> tuple[int, str, bytes]:
        return 200, _HTML, status_page.page(status(assembly))

    served = PageServer(LOOPBACK, port, {"/": page}, option="--status-port", local=True)
    _log.info("the status page: http://localhost:%d/", served.port)
    return served


def status(assembly: Assembly) -> Status:
    """Gather what the page shows."""
    now_ms = int((assembly.server_time() or time.time()) * _SECOND_MS)
    held = []
    for key in assembly.loop:
        due = assembly.loop.get(key)
        if due is not None:
            held.append(Held(key, due.at_ms, due.problem))
    found = [*facts(assembly.metrics.registry.get_sample_value, now_ms, synced=assembly.synced)]
    seen = None
    if assembly.sticky_args is not None:
        try:
            seen = machines(assembly.cluster, partial(wiring.sticky_args, assembly.pipeline))
        except ClusterError as exc:
            found.append(("VMs", f"cannot be listed: {exc}", False))
    return Status(assembly.cluster.server, now_ms, found, held, assembly.chronicle.released(), seen)


def machines(api: Api, settings: Settings) -> Sequence[StickyVm] | None:
    """List the first VMs, at most one more than the page shows; None where there is no KubeVirt.

    Raises ClusterError.
    """
    most = MOST_ROWS + 1
    try:
        known = [*islice(reading.objects(api, _path("virtualmachines"), TemplatedMachine), most)]
        running = [*islice(reading.objects(api, _path("virtualmachineinstances"), Instance), most)]
    except ApiStatusError as exc:
        if exc.status == _NOT_FOUND:
            return None
        raise
    instances = {one.key: one for one in running}
    pairs = [(vm, instances.get(vm.key)) for vm in known]
    return [
        sticky_vms.described(vm, vmi, settings(sticky_vms.next_pod(vm, vmi))) for vm, vmi in pairs
    ]


def _path(plural: str) -> str:
    return f"{vms.API_PATH}/{plural}"


def facts(sample: Sample, now_ms: int, *, synced: bool) -> Iterator[tuple[str, str, bool]]:
    """Say how the controller is: names, values, and whether each is as it should be."""
    leads = sample("holdfast_leader") == 1
    yield "This controller", "leads" if leads else "stands by", True
    yield "All pods are known", "yes" if synced else "not yet", synced
    overdue = int(sample("holdfast_overdue_pods") or 0)
    yield "Overdue pods", str(overdue), not (leads and overdue)
    released = sample("holdfast_release_lateness_seconds_count") or 0
    if released:
        late = (sample("holdfast_release_lateness_seconds_sum") or 0) / released
        yield "Releases", f"{released:.0f}, on average {late:.3f} s late", True
    yield (
        "API server's clock known within",
        f"{sample('holdfast_clock_uncertainty_seconds') or 0:.3f} s",
        True,
    )
    yield from _kept(sample)
    yield from _certificates(sample, now_ms, leads=leads)


def _kept(sample: Sample) -> Iterator[tuple[str, str, bool]]:
    kept = int(sample("holdfast_vm_pods_kept") or 0)
    back = int(sample("holdfast_vm_pods_kept_back") or 0)
    yield "Pods of sticky VMs that are kept", str(kept), True
    yield "VMs that wait for their record", str(back), not back


def _certificates(sample: Sample, now_ms: int, *, leads: bool) -> Iterator[tuple[str, str, bool]]:
    expiry = sample("holdfast_ca_expiry_timestamp_seconds")
    if not expiry:
        return  # this controller keeps none
    at_ms = int(expiry * _SECOND_MS)
    left = tables.duration(at_ms - now_ms)
    yield "CA", f"until {values.canonical_instant(at_ms)}, {left} more", at_ms > now_ms
    registered = sample("holdfast_webhooks_registered") == 1
    if leads:
        yield "Webhooks", "registered" if registered else "not as configured", registered
