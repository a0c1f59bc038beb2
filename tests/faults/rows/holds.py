"""Pods that are held for other reasons than a delay, while a fault is injected.

They wait for a pace, a Job, a window, an approval, or the end of a freeze. The load's pods wait for
their delay at the same time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from controlplane.components import KWOK
from controlplane.errors import ControlPlaneError
from holdfast.webhook.model import approvals
from tests.e2e.namespace import Namespace, Object, gates, pod, seconds
from tests.e2e.workloads import EMPTY_JOB
from tests.faults.rows import api_server, clocks, controller
from tests.faults.rows.own import create_extra_namespace, extra_namespace
from tests.faults.scenario import BOUND, Action, Fault, Scenario, nothing
from tests.support.scrapes import metric

STARTING = 3
"""Pods with a pace that may be starting at the same time."""
PACED, SHORT_PACED = 27, 12
STALLED = 240.0
"""Seconds without another ready pod until the test stops waiting. A busy kwok once took 160 s to
make a pod ready."""
UNREADY = 6
"""Pods with another pace that are never ready: a new leader has to count them as starting."""
PACE_SECONDS = 295.0
"""How long a pod that is not ready counts as starting: 5 minutes, less the time of a release."""
PODS_PER_HOLD = 20
CREATION_SECONDS = 20.0
"""Seconds in which the pods that wait for a window are created."""
ADMIN = "holdfast-admin"
"""The user of the cluster's kubeconfig."""
RELEASE_SECONDS = 5.0
"""Seconds until due pods would be released, and their releases be in the audit log."""
UNSERVED = "kube-system"
"""A namespace that the webhooks exclude."""
HOSTILE = ("", "\x00", "\u202e", "job/" + "a" * 5_000, "0", "-1", "9" * 400, "NaN", "{}", "*")
"""Values that are invalid for all of the annotations."""
KEYS = tuple(f"holdfast.dev/{name}" for name in ("pace", "after", "window", "approval"))


def create_held_pods(scenario: Scenario) -> None:
    """Create the pods in a separate namespace, where running pods are not deleted."""
    ns = create_extra_namespace(scenario, "holds")
    opens = (int(time.time() + CREATION_SECONDS) // 60 + 1) * 60
    clock = time.strftime("%H:%M", time.gmtime(opens))
    closes = time.strftime("%H:%M", time.gmtime(opens + 3_600))
    annotations = {"window": f"{clock}-{closes}", "after": "job/migrate", "approval": "a fault"}
    ns.create_pods(
        pod(f"{name}-{number}", {f"holdfast.dev/{name}": value})
        for name, value in annotations.items()
        for number in range(PODS_PER_HOLD)
    )
    ns.apply(_paced(int(scenario.long_or_short(PACED, SHORT_PACED))))
    unready = {"holdfast.dev/pace": str(STARTING)}
    ns.create_pods(
        pod(f"unready-{number}", unready, schedulerName="none") for number in range(UNREADY)
    )
    scenario.due = opens
    for number in range(PODS_PER_HOLD):
        scenario.own[ns.namespace, f"window-{number}"] = opens


def while_held(fault: Action) -> Action:
    """Inject a fault while the Job completes and the pods are approved."""

    def inject(scenario: Scenario) -> None:
        ns = extra_namespace(scenario, "holds")
        with _ending_holds(scenario, ns):
            fault(scenario)
        completed_at = seconds(ns.get("job", "migrate")["status"]["completionTime"])
        for number in range(PODS_PER_HOLD):
            scenario.own[ns.namespace, f"after-{number}"] = completed_at

    return inject


def check_holds(scenario: Scenario) -> None:
    """Check that all pods except one are released, and that the pace is kept.

    This runs after the load, during which a busy kwok takes minutes to make paced pods ready.
    """
    ns = extra_namespace(scenario, "holds")
    count = int(scenario.long_or_short(PACED, SHORT_PACED))

    def left(*prefixes: str) -> list[str]:
        names = [
            manifest["metadata"]["name"]
            for manifest in ns.all("pods")
            if any(map(_is_ours, gates(manifest)))
        ]
        return [name for name in names if name.startswith(prefixes)]

    left_unpaced = partial(left, "window", "after", "approval")
    # a busy kwok misses pods, but finds them when it lists them at startup
    scenario.testbed.plane.process(KWOK).kill()
    scenario.eventually(
        lambda: len(left_unpaced()) <= 1, BOUND + max(0.0, scenario.due - time.time())
    )
    held_names = left_unpaced()
    scenario.testbed.plane.process(KWOK).kill()
    ready_count = _wait_for_ready(scenario, ns, count)
    held_names += left("paced")
    scenario.notes.append(f"still held: {held_names}")
    scenario.check("pods released without an approval", int("approval-0" not in held_names))
    scenario.check("waiting pods not released in time", len({*held_names} - {"approval-0"}))
    scenario.check("paced pods never ready", count - ready_count)
    scenario.check("seconds with a free slot", _longest_free(scenario, ns), BOUND)
    for name in ("paced", "unready"):
        most_starting = _most_starting(scenario, ns, name)
        scenario.check("paced pods starting at the same time", most_starting, STARTING)


def _wait_for_ready(scenario: Scenario, ns: Namespace, count: int) -> int:
    def has_more(threshold: int) -> bool:
        return _ready(scenario, ns) > threshold

    stalled = scenario.long_or_short(STALLED, BOUND)
    while (ready_count := _ready(scenario, ns)) < count:
        if scenario.eventually(partial(has_more, ready_count), stalled) > stalled:
            break
    return ready_count


def hostile(scenario: Scenario) -> None:
    """Create pods with our gates and invalid values, in a namespace that the webhooks exclude."""
    ns = Namespace(scenario.testbed.plane, UNSERVED)
    manifests = [
        pod(f"hostile-{index}-{number}", {key: value}, schedulingGates=[{"name": key}])
        for number, key in enumerate(KEYS)
        for index, value in enumerate(HOSTILE)
    ]
    for manifest in manifests:
        manifest["metadata"]["labels"] = {"hostile": "yes"}
    ns.create_pods(manifests)
    scenario.wait(30, 10)
    ns.kubectl("delete", "pods", "-l", "hostile", "--wait=false")


def create_frozen_pods(scenario: Scenario) -> None:
    """Freeze a separate namespace, and create pods in it that fall due soon."""
    ns = create_extra_namespace(scenario, "holds")
    freeze = ("annotate", "namespace", ns.namespace, "holdfast.dev/freeze=test")
    scenario.testbed.plane.kubectl(*freeze)
    for command in scenario.testbed.controllers:
        scenario.eventually(partial(metric, command, "holdfast_freezes "), BOUND)
    ns.create_pods(pod(f"frozen-{number}", {"delay": "1"}) for number in range(PODS_PER_HOLD))


def while_frozen(fault: Action) -> Action:
    """Inject a fault while the frozen pods are due, then end the freeze."""

    def inject(scenario: Scenario) -> None:
        ns = extra_namespace(scenario, "holds")
        fault(scenario)
        scenario.wait(RELEASE_SECONDS)
        scenario.check("pods released while frozen", len(_released(scenario, ns)))
        scenario.testbed.plane.kubectl(
            "annotate", "namespace", ns.namespace, "holdfast.dev/freeze-"
        )
        scenario.eventually(lambda: len(_released(scenario, ns)) == PODS_PER_HOLD, BOUND)
        held_count = PODS_PER_HOLD - len(_released(scenario, ns))
        scenario.check("pods not released after the freeze", held_count)

    return inject


def _released(scenario: Scenario, ns: Namespace) -> list[str]:
    """Return the pods that may have been released."""
    scenario.testbed.audit.read()
    return [
        name
        for (namespace, name), writes in list(scenario.testbed.audit.releases.items())
        if namespace == ns.namespace and any(write.may_have_succeeded for write in writes)
    ]


@contextmanager
def _ending_holds(scenario: Scenario, ns: Namespace) -> Iterator[None]:
    """Run the Job, and approve all pods except one, with retries during an outage."""
    errors: list[str] = []
    annotations = {approvals.APPROVED_BY: ADMIN}
    patch = json.dumps({"metadata": {"annotations": annotations}})
    job = scenario.testbed.installed.folder / f"job-{scenario.mark}.json"
    job.write_text(json.dumps({**EMPTY_JOB, "metadata": {"name": "migrate"}}))
    commands = [
        ("create", "-f", str(job)),
        *(
            ("patch", "pod", f"approval-{number}", "--type=merge", "-p", patch)
            for number in range(1, PODS_PER_HOLD)
        ),
        ("wait", "--for=condition=Complete", "job/migrate", f"--timeout={BOUND:.0f}s"),
    ]

    def run() -> None:
        time.sleep(2)
        end = time.monotonic() + 2 * BOUND
        errors.extend(filter(None, (_retry(ns, command, end) for command in commands)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        scenario.notes += errors
        scenario.check("commands rejected by the API server", len(errors))


def _retry(ns: Namespace, command: tuple[str, ...], end: float) -> str:
    """Repeat a command until it succeeds; return the last error if it has not at the end."""
    while True:
        try:
            ns.kubectl(*command)
        except ControlPlaneError as exc:
            if "AlreadyExists" in str(exc):
                return ""
            if time.monotonic() > end:
                return str(exc)
            time.sleep(1)
        else:
            return ""


def _paced(replicas: int) -> Object:
    labels = {"app": "paced", "slow": "yes"}
    template = pod("paced", {"holdfast.dev/pace": str(STARTING)})
    template["metadata"] = {**template["metadata"], "labels": labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "paced"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "paced"}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


def _is_ours(gate: str) -> bool:
    return gate.startswith("holdfast.dev/")


def _ready(scenario: Scenario, ns: Namespace) -> int:
    """Count the paced pods that have been ready at some time.

    Pods of a node with late heartbeats are marked as not ready, which kwok does not undo.
    """
    scenario.testbed.audit.read()
    ready_pods = list(scenario.testbed.audit.ready)
    return sum(
        namespace == ns.namespace and name.startswith("paced-") for namespace, name in ready_pods
    )


def _starting(scenario: Scenario, ns: Namespace, prefix: str) -> dict[str, tuple[float, float]]:
    """Return the span in which each pod with this prefix was released and not ready."""
    scenario.testbed.audit.read()
    spans = {}
    for manifest in ns.all("pods"):
        name = str(manifest["metadata"]["name"])
        if not name.startswith(prefix):
            continue
        until = scenario.testbed.audit.ready.get((ns.namespace, name), float("inf"))
        writes = scenario.testbed.audit.releases[ns.namespace, name]
        since = next((write.at for write in writes if write.succeeded), None) or next(
            (write.at for write in writes if write.may_have_succeeded), None
        )
        if since is not None:
            spans[name] = since, max(since, min(until, since + PACE_SECONDS))
    return spans


def _counts(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    """Yield each time at which the number of starting pods changes, with the new number."""
    count = 0
    for at, change in sorted(step for since, until in spans for step in ((since, 1), (until, -1))):
        count += change
        yield at, count


def _most_starting(scenario: Scenario, ns: Namespace, prefix: str) -> int:
    """Return the most pods with this prefix that were released and not ready at the same time."""
    spans = _starting(scenario, ns, prefix)
    maximum = max((count for _, count in _counts(spans.values())), default=0)
    if maximum > STARTING:
        scenario.notes.insert(0, f"starting: {spans}")
    return maximum


def _longest_free(scenario: Scenario, ns: Namespace) -> float:
    """Return the longest time, in seconds, that a slot was free before the last release."""
    spans = _starting(scenario, ns, "paced-")
    last_release = max((since for since, _ in spans.values()), default=0.0)
    longest_gap, free_since = 0.0, float("inf")
    for at, count in _counts(spans.values()):
        if at > last_release:
            break
        longest_gap = max(longest_gap, at - free_since)
        free_since = min(free_since, at) if count < STARTING else float("inf")
    return longest_gap


def _row(name: str, inject: Action, broken: str, caught_by: str, **more: Any) -> Fault:
    """Return a row with pods that are held for all kinds of reasons."""
    return Fault(
        name,
        inject,
        broken=broken,
        caught_by=caught_by,
        **{"prepare": create_held_pods, "verify": check_holds, "minutes": 4.0, **more},
    )


_STARTING, _LATE = "paced pods starting at the same time", "waiting pods not released in time"
_FROZEN: dict[str, Any] = {"prepare": create_frozen_pods, "verify": nothing, "minutes": 2.5}

FAULTS = [
    _row("holds-controller-killed", while_held(controller.killed), "forgets-who-starts", _STARTING),
    _row("holds-watches-silent", while_held(api_server.silent), "trusts-silence", _LATE),
    _row(
        "holds-api-server-restarted",
        while_held(api_server.restarted),
        "dies-of-gone",
        _LATE,
        outage=True,
    ),
    _row("holds-clock-stepping", while_held(clocks.stepping), "wall-clock", "early"),
    _row("holds-hostile-values", while_held(hostile), "dies-of-values", _LATE),
    _row(
        "holds-frozen-controller-killed",
        while_frozen(controller.killed),
        "forgets-freezes",
        "pods released while frozen",
        **_FROZEN,
    ),
    _row(
        "holds-frozen-watches-silent",
        while_frozen(api_server.silent),
        "trusts-silence",
        "pods not released after the freeze",
        **_FROZEN,
    ),
]
