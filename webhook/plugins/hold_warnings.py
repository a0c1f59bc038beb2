"""Warnings about workloads that holding their pods would harm, shown by `kubectl apply`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from holdfast.webhook.model import durations
from holdfast.webhook.model.calendar import cron
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.model.workloads import Workload

_OUTCOMES = {"Replace": "replaced before they start", "Forbid": "skipped"}
"""The fate of CronJob runs while pods of an earlier run are held, by concurrencyPolicy."""
_DEFAULT_DEADLINE = ("spec.progressDeadlineSeconds", 600)
"""The API server's default for every Deployment: warn only if it certainly expires."""


def find(pod: Pod, workload: Workload, wait_ms: int) -> list[str]:
    """Return the warnings about a workload whose pods are each held for up to `wait_ms`."""
    wait = durations.canonical_delay(wait_ms)
    warnings = [*_cannot_hold(pod, workload), *_deadline(workload, wait_ms, wait)]
    warnings += [
        *_order(workload, wait),
        *_updates(workload, wait),
        *_runs(workload, wait_ms, wait),
    ]
    return [f"holdfast: {warning}" for warning in warnings]


def find_once(pod: Pod, workload: Workload, wait_ms: int | None) -> list[str]:
    """Return the warnings about a workload whose pods wait for the same event or time.

    `wait_ms` is None if the time is unknown. Pods that are created afterwards do not wait.
    """
    warnings = [*_cannot_hold(pod, workload)]
    if wait_ms is None:
        warnings += [*_unknown(workload)]
    else:
        wait = durations.canonical_delay(wait_ms)
        warnings += [*_deadline(replace(workload, rounds=1), wait_ms, wait)]
        warnings += [*_runs(workload, wait_ms, wait)]
    return [f"holdfast: {warning}" for warning in warnings]


def _unknown(workload: Workload) -> Iterator[str]:
    if workload.deadline not in {None, _DEFAULT_DEADLINE}:
        field, seconds = workload.deadline
        yield f"{field}={seconds} also counts while pods are held: increase or remove it"
    if workload.concurrency in _OUTCOMES:
        yield (
            f"spec.concurrencyPolicy: {workload.concurrency}: while the pods of a run are held, "
            f"runs are {_OUTCOMES[workload.concurrency]}"
        )


def _cannot_hold(pod: Pod, workload: Workload) -> Iterator[str]:
    if pod.spec.node_name:
        yield (
            f"{workload.path}.spec.nodeName is set, so the pods cannot be held: use a "
            "nodeSelector instead"
        )


def _deadline(workload: Workload, wait_ms: int, wait: str) -> Iterator[str]:
    if workload.deadline is None:
        return
    field, seconds = workload.deadline
    if seconds * 1_000 <= wait_ms:
        yield f"{field}={seconds} expires while pods are held for {wait}: increase it"
    elif seconds * 1_000 <= wait_ms * workload.rounds:
        yield (
            f"{field}={seconds} expires before the last of {workload.rounds} rounds of pods, each "
            f"held for {wait}: increase it, or increase parallelism"
        )


def _order(workload: Workload, wait: str) -> Iterator[str]:
    if workload.ordered > 1:
        yield (
            f"{workload.ordered} pods start one at a time, each held for {wait}: set "
            "spec.podManagementPolicy: Parallel to hold them together"
        )
    if workload.waits_for:
        yield (
            f"{workload.waits_for} starts the pods of {workload.path} after others: if those are "
            "held, too, the delays add up"
        )


def _updates(workload: Workload, wait: str) -> Iterator[str]:
    if not workload.deletes_first:
        return
    cures = {
        "Deployment": "set spec.strategy.type: RollingUpdate, with a maxSurge",
        "DaemonSet": "set maxSurge in spec.updateStrategy.rollingUpdate, or remove the delay",
        "StatefulSet": "remove the delay if the pods must stay available",
        "LeaderWorkerSet": "set maxSurge in its rollingUpdateConfiguration, or remove the delay",
    }
    yield (
        f"{workload.deletes_first} deletes each pod before its successor starts, so an update "
        f"leaves it down for {wait}: {cures[workload.kind]}"
    )


def _runs(workload: Workload, wait_ms: int, wait: str) -> Iterator[str]:
    if workload.concurrency not in _OUTCOMES:
        return
    period = cron.shortest_period(workload.schedule)
    if period is not None and period * 1_000 <= wait_ms:
        yield (
            f"spec.schedule starts a run every {durations.canonical_delay(period * 1_000)}, and "
            f"pods are held for {wait}: with spec.concurrencyPolicy: {workload.concurrency} runs "
            f"are {_OUTCOMES[workload.concurrency]}; shorten the hold"
        )
