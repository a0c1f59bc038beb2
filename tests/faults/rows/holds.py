"""Pods that wait for more than a time, while something else is done to the cluster.

Some share a pace, some wait for a Job, some for a window, some for an approval, and some for the
end of a freeze; the load's wait for their delay meanwhile.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from controlplane.components import KWOK
from controlplane.errors import ControlPlaneError
from holdfast.webhook.model import approvals
from tests.e2e.namespace import Namespace, Object, gates, pod, seconds
from tests.e2e.test_after import EMPTY_JOB
from tests.e2e.test_leader import metric
from tests.faults.rows import api_server, clocks, controller
from tests.faults.scenario import BOUND, Fault, Scenario

STARTING = 3
"""Pods of the pace that may be starting at a time."""
PACED, SHORT_PACED = 27, 12
STALLED = 240.0
"""Seconds without a further pod that is released or ready until the rest counts as left behind. A
busy kwok once took 160 to make a pod ready."""
UNREADY = 6
"""Pods of another pace that are never ready: a leader has to know that they are starting, however
long it takes until there is one."""
PACE_SECONDS = 295.0
"""How long a pod that is not ready counts for its pace: 5 minutes, less what a release takes."""
WAITERS = 20
SOON = 20.0
"""Seconds in which the cluster has taken in the pods that wait for a window."""
ADMIN = "holdfast-admin"
"""The user of the cluster's kubeconfig."""
SETTLED = 5.0
"""Seconds in which a leader has released what is due, and the audit log has it."""
UNSERVED = "kube-system"
HOSTILE = ("", "\x00", "\u202e", "job/" + "a" * 5_000, "0", "-1", "9" * 400, "NaN", "{}", "*")
"""Values that none of the annotations may have."""
KEYS = tuple(f"holdfast.dev/{name}" for name in ("pace", "after", "window", "approval"))


def waiting(scenario: Scenario) -> None:
    """Create the pods, in a separate namespace: the load's running pods are deleted."""
    ns = _namespace(scenario)
    Namespace.create_new(scenario.testbed.plane, ns.namespace)
    scenario.apart.append(ns.namespace)
    opens = (int(time.time() + SOON) // 60 + 1) * 60
    clock = time.strftime("%H:%M", time.gmtime(opens))
    closes = time.strftime("%H:%M", time.gmtime(opens + 3_600))
    made = {"window": f"{clock}-{closes}", "after": "job/migrate", "approval": "a fault"}
    ns.create_pods(
        pod(f"{name}-{number}", {f"holdfast.dev/{name}": value})
        for name, value in made.items()
        for number in range(WAITERS)
    )
    ns.apply(_paced(int(scenario.lasts(PACED, SHORT_PACED))))
    unready = {"holdfast.dev/pace": str(STARTING)}
    ns.create_pods(
        pod(f"unready-{number}", unready, schedulerName="none") for number in range(UNREADY)
    )
    scenario.due = opens
    for number in range(WAITERS):
        scenario.own[ns.namespace, f"window-{number}"] = opens


def meanwhile(harm: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
    """Complete the Job and approve the pods while harm is done."""

    def act(scenario: Scenario) -> None:
        ns = _namespace(scenario)
        with _allowed(scenario, ns):
            harm(scenario)
        done = seconds(ns.get("job", "migrate")["status"]["completionTime"])
        for number in range(WAITERS):
            scenario.own[ns.namespace, f"after-{number}"] = done

    return act


def check(scenario: Scenario) -> None:
    """Check that all pods but one are released, and no more of the pace than may be starting.

    While the load goes on, a busy kwok takes minutes to make the paced pods ready.
    """
    ns, count = _namespace(scenario), int(scenario.lasts(PACED, SHORT_PACED))

    def left(*prefixes: str) -> list[str]:
        names = [
            one["metadata"]["name"] for one in ns.all("pods") if any(map(_is_ours, gates(one)))
        ]
        return [name for name in names if name.startswith(prefixes)]

    others = partial(left, "window", "after", "approval")
    # a busy kwok forgets pods, but not those that it lists
    scenario.testbed.plane.process(KWOK).kill()
    scenario.eventually(lambda: len(others()) <= 1, BOUND + max(0.0, scenario.due - time.time()))
    found = others()
    scenario.testbed.plane.process(KWOK).kill()
    ready = _wait_while_more_get_ready(scenario, ns, count)
    found += left("paced")
    scenario.notes.append(f"still held: {found}")
    scenario.check("released without an approval", int("approval-0" not in found))
    scenario.check("waiting pods not released in time", len({*found} - {"approval-0"}))
    scenario.check("paced pods that were never ready", count - ready)
    scenario.check("seconds with a free slot", _longest_free(scenario, ns), BOUND)
    for name in ("paced", "unready"):
        most = _most_starting(scenario, ns, name)
        scenario.check("paced pods starting at a time", most, STARTING)


def _wait_while_more_get_ready(scenario: Scenario, ns: Namespace, count: int) -> int:
    def more(seen: int) -> bool:
        return _ready(scenario, ns) > seen

    patience = scenario.lasts(STALLED, BOUND)
    while (ready := _ready(scenario, ns)) < count:
        if scenario.eventually(partial(more, ready), patience) > patience:
            break
    return ready


def hostile(scenario: Scenario) -> None:
    """Store pods with our gates and unreadable values, in a namespace that no webhook serves."""
    own = Namespace(scenario.testbed.plane, UNSERVED)
    made = [
        pod(f"hostile-{place}-{number}", {key: value}, schedulingGates=[{"name": key}])
        for number, key in enumerate(KEYS)
        for place, value in enumerate(HOSTILE)
    ]
    for one in made:
        one["metadata"]["labels"] = {"hostile": "yes"}
    own.create_pods(made)
    scenario.go_on(30, 10)
    own.kubectl("delete", "pods", "-l", "hostile", "--wait=false")


def frozen(scenario: Scenario) -> None:
    """Freeze a separate namespace, and let pods fall due in it."""
    ns = _namespace(scenario)
    Namespace.create_new(scenario.testbed.plane, ns.namespace)
    scenario.apart.append(ns.namespace)
    freeze = ("annotate", "namespace", ns.namespace, "holdfast.dev/freeze=why")
    scenario.testbed.plane.kubectl(*freeze)
    for each in scenario.testbed.controllers:
        scenario.eventually(partial(metric, each, "holdfast_freezes "), BOUND)
    ns.create_pods(pod(f"frozen-{number}", {"delay": "1"}) for number in range(WAITERS))


def while_frozen(harm: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
    """Do harm while the pods are due, then end the freeze."""

    def act(scenario: Scenario) -> None:
        ns = _namespace(scenario)
        harm(scenario)
        scenario.go_on(SETTLED)
        scenario.check("pods released while frozen", len(_released(scenario, ns)))
        scenario.testbed.plane.kubectl(
            "annotate", "namespace", ns.namespace, "holdfast.dev/freeze-"
        )
        seconds = scenario.eventually(lambda: len(_released(scenario, ns)) == WAITERS, BOUND)
        scenario.figures["seconds from the thaw to the last release"] = seconds
        left = WAITERS - len(_released(scenario, ns))
        scenario.check("pods not released after the thaw", left)

    return act


def _released(scenario: Scenario, ns: Namespace) -> list[str]:
    """List the pods that the API server may have released."""
    scenario.testbed.audit.read()
    return [
        name
        for (space, name), writes in list(scenario.testbed.audit.releases.items())
        if space == ns.namespace and any(each.may_have_worked for each in writes)
    ]


@contextmanager
def _allowed(scenario: Scenario, ns: Namespace) -> Iterator[None]:
    """Run the Job, and approve all pods but one, as soon as the API server lets us."""
    refused: list[str] = []
    approved = {approvals.APPROVED_BY: ADMIN}
    patch = json.dumps({"metadata": {"annotations": approved}})
    job = scenario.testbed.installed.folder / f"job-{scenario.mark}.json"
    job.write_text(json.dumps({**EMPTY_JOB, "metadata": {"name": "migrate"}}))
    orders = [
        ("create", "-f", str(job)),
        *(
            ("patch", "pod", f"approval-{number}", "--type=merge", "-p", patch)
            for number in range(1, WAITERS)
        ),
        ("wait", "--for=condition=Complete", "job/migrate", f"--timeout={BOUND:.0f}s"),
    ]

    def run() -> None:
        time.sleep(2)
        end = time.monotonic() + 2 * BOUND
        refused.extend(filter(None, (_insist(ns, order, end) for order in orders)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        scenario.notes += refused
        scenario.check("orders that the API server refused", len(refused))


def _insist(ns: Namespace, order: tuple[str, ...], end: float) -> str:
    """Repeat a command until the API server carries it out; return why it did not until the end."""
    while True:
        try:
            ns.kubectl(*order)
        except ControlPlaneError as exc:
            if "AlreadyExists" in str(exc):
                return ""
            if time.monotonic() > end:
                return str(exc)
            time.sleep(1)
        else:
            return ""


def _namespace(scenario: Scenario) -> Namespace:
    name = f"holds-{scenario.mark}"
    return Namespace(scenario.testbed.plane, name)


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
    """Count the paced pods that have been ready.

    If a node's heartbeats were late, its pods are marked as not ready, and kwok leaves them so.
    """
    scenario.testbed.audit.read()
    found = list(scenario.testbed.audit.ready)
    return sum(space == ns.namespace and name.startswith("paced-") for space, name in found)


def _starting(scenario: Scenario, ns: Namespace, prefix: str) -> dict[str, tuple[float, float]]:
    """Find from when to when each pod of a pace was released and not ready."""
    scenario.testbed.audit.read()
    found = {}
    for one in ns.all("pods"):
        name = str(one["metadata"]["name"])
        if not name.startswith(prefix):
            continue
        until = scenario.testbed.audit.ready.get((ns.namespace, name), float("inf"))
        tries = scenario.testbed.audit.releases[ns.namespace, name]
        since = next((each.at for each in tries if each.worked), None) or next(
            (each.at for each in tries if each.may_have_worked), None
        )
        if since is not None:
            found[name] = since, max(since, min(until, since + PACE_SECONDS))
    return found


def _counts(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, int]]:
    """Give each moment at which the number of pods that are starting changes, and the number."""
    count = 0
    for at, change in sorted(pair for since, until in spans for pair in ((since, 1), (until, -1))):
        count += change
        yield at, count


def _most_starting(scenario: Scenario, ns: Namespace, prefix: str) -> int:
    """Count how many pods of a pace were released and not ready at a time, at most."""
    spans = _starting(scenario, ns, prefix)
    most = max((count for _, count in _counts(spans.values())), default=0)
    if most > STARTING:
        scenario.notes.insert(0, f"starting: {spans}")
    return most


def _longest_free(scenario: Scenario, ns: Namespace) -> float:
    """Return for how many seconds on end a slot was free before the last pod was released."""
    spans = _starting(scenario, ns, "paced-")
    last = max((since for since, _ in spans.values()), default=0.0)
    longest, free_since = 0.0, float("inf")
    for at, count in _counts(spans.values()):
        if at > last:
            break
        longest = max(longest, at - free_since)
        free_since = min(free_since, at) if count < STARTING else float("inf")
    return longest


def _row(
    name: str, action: Callable[[Scenario], None], broken: str, caught_by: str, **more: Any
) -> Fault:
    """Make a row of pods that wait for all kinds of holds."""
    return Fault(
        name,
        11,
        action,
        broken=broken,
        caught_by=caught_by,
        **{"prepare": waiting, "verify": check, "minutes": 4.0, **more},
    )


_STARTING, _LATE = "paced pods starting at a time", "waiting pods not released in time"
_FROZEN: dict[str, Any] = {"prepare": frozen, "verify": None, "minutes": 2.5}

FAULTS = [
    _row("holds-controller-killed", meanwhile(controller.killed), "forgets-who-starts", _STARTING),
    _row("holds-watches-silent", meanwhile(api_server.silent), "trusts-silence", _LATE),
    _row(
        "holds-api-server-restarted",
        meanwhile(api_server.restarted),
        "dies-of-gone",
        _LATE,
        outage=True,
    ),
    _row("holds-clock-stepping", meanwhile(clocks.stepping), "wall-clock", "early"),
    _row("holds-hostile-values", meanwhile(hostile), "dies-of-values", _LATE),
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
        "pods not released after the thaw",
        **_FROZEN,
    ),
]
