"""The admission servers are killed, stopped, down, slow, or lack memory, disk or descriptors."""

import json
import signal
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException, HTTPSConnection

import psutil

from controlplane.components import API_SERVER
from demo.command import Command
from tests.faults.scenario import Scenario, Table
from tests.support.builders import make_pod, make_review

FAULTS = Table(1)

ENDING = 5.0
"""Seconds in which errors end after one replica has gone."""
NOTICED = 1.0
"""Seconds until a kubelet sees that a container has ended, and starts it again."""
_MARGIN = 12.0
"""Seconds more where a whole process has to start on a crowded machine, or probes have to fail."""
_BEYOND = 7.0
"""Seconds for which is looked beyond a bound: a call that fails is known when it has timed out."""
PEAK = 40
"""Creations at once, for which the API server opens connections that it seldom needs."""
MOST_LEFT = 32
"""Descriptors that may be free below a process's limit, at most: those that were closed."""

REFUSALS = 10
"""How many reviews each replica is asked for that it refuses, and logs."""
PATIENCE = 3.0
"""Seconds for an answer, as the API server has them."""

SPARE = 0.2
"""The share of what asks that may be refused while no connection can be opened: whatever comes
while all that are open are in use."""


def family(pid: int) -> list[psutil.Process]:
    """Give a replica's processes: gunicorn's arbiter, and its worker."""
    arbiter = psutil.Process(pid)
    return [*arbiter.children(recursive=True), arbiter]


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill them at once, as the end of a container does."""
    for each in processes:
        each.kill()


def errors_end(scenario: Scenario, since: float) -> float:
    """Return for how long after a moment creations still failed; 0 if none did."""
    failures = [one.at - since for one in scenario.load.failures if one.by_webhook]
    return max([0.0, *(at for at in failures if at > 0)])


def busiest(scenario: Scenario) -> int:
    """Return the number of the replica with the most connections of the API server.

    Its connections are kept alive, and it opens no more than it needs: one replica may have all.
    """
    found = connected(scenario)
    scenario.check("moments without a connected replica", int(not any(found)))
    return found.index(max(found))


def connected(scenario: Scenario) -> Sequence[int]:
    """Count the connections that the API server has open to each replica."""
    server = psutil.Process(scenario.testbed.plane.process(API_SERVER).pid)
    connections = server.net_connections("tcp")
    ports = Counter(one.raddr.port for one in connections if one.status == psutil.CONN_ESTABLISHED)
    return [ports[scenario.testbed.installed.ports[number]] for number in (0, 1)]


@FAULTS.row(
    "webhook-killed", broken="serves-too-soon", caught_by="seconds until errors ended", refuses=True
)
def killed(scenario: Scenario) -> None:
    """Kill one replica, then the other; as a kubelet does, have it leave, and start it again."""
    first = busiest(scenario)
    for number in (first, 1 - first) * (1 if scenario.short else 2):
        scenario.testbed.resting.add(number)
        since = time.time()
        end(family(scenario.testbed.replicas[number].pid))
        scenario.go_on(NOTICED)
        port = scenario.testbed.installed.ports[number]
        scenario.testbed.installed.join(number, port, ready=False)
        out = time.time() - since
        scenario.testbed.replicas[number].kill()
        scenario.testbed.revive(number)
        most = ENDING + out - NOTICED
        scenario.go_on(max(0.0, since + most + _BEYOND - time.time()))
        scenario.figures["seconds until the Service knew"] = round(out, 1)
        scenario.check("seconds until errors ended", errors_end(scenario, since), most)


@FAULTS.row(
    "webhook-stopped",
    minutes=2.0,
    broken="fails-open",
    caught_by="delayed pods let through",
    refuses=True,
)
def stopped(scenario: Scenario) -> None:
    """Stop one replica for half a minute, then the other: connections stay open without a response.

    The API server opened some for a peak and keeps them unused. It cannot know that the replica is
    stopped: at the next peak, each of them fails one creation.
    """
    scenario.load.burst(PEAK, f"peak-{scenario.mark}")
    first = busiest(scenario)
    for number in (first, 1 - first):
        processes = family(scenario.testbed.replicas[number].pid)
        since = time.time()
        for each in processes:
            each.send_signal(signal.SIGSTOP)
        try:
            scenario.go_on(ENDING + _MARGIN)
            out = time.time()
            unused = connected(scenario)[number]
            scenario.load.burst(PEAK, f"peak-{number}-{scenario.mark}")
            scenario.go_on(max(0.0, since + 30 - time.time()), _BEYOND)
        finally:
            for each in processes:
                each.send_signal(signal.SIGCONT)
        failed = sum(one.by_webhook and one.at >= out for one in scenario.load.failures)
        scenario.figures[f"connections to stopped replica {number}"] = unused
        scenario.figures[f"creations that these failed, {number}"] = failed
        scenario.check("creations failed beyond one for each connection", max(0, failed - unused))
        scenario.go_on(ENDING)


@FAULTS.row(
    "webhook-out-of-memory",
    minutes=2.0,
    broken="leaves-the-dead",
    caught_by="seconds until errors ended",
    refuses=True,
)
def out_of_memory(scenario: Scenario) -> None:
    """Kill the worker of each replica, as the kernel does where memory runs out."""
    for number in (0, 1) * (1 if scenario.short else 2):
        since = time.time()
        end(family(scenario.testbed.replicas[number].pid)[:-1])
        scenario.go_on(ENDING + _MARGIN + _BEYOND)
        scenario.check("seconds until errors ended", errors_end(scenario, since), ENDING + _MARGIN)


@FAULTS.row(
    "webhook-down",
    tested=True,
    broken="fails-open",
    caught_by="delayed pods let through",
    refuses=True,
)
def all_down(scenario: Scenario) -> None:
    """Have both replicas down for a minute."""
    scenario.testbed.resting |= {0, 1}
    before = len(scenario.load.failures)
    for each in scenario.testbed.replicas:
        end(family(each.pid))
        each.kill()
    scenario.go_on(60, 6)
    refused = [one for one in scenario.load.failures[before:] if one.wish.asks]
    scenario.check("moments without a rejection", int(not refused))
    for number in range(2):
        scenario.testbed.revive(number)
    since = time.time()
    scenario.go_on(ENDING + _BEYOND)
    scenario.check("seconds until errors ended", errors_end(scenario, since), ENDING)


@FAULTS.row(
    "webhook-slow", broken="one-at-a-time", caught_by="creations refused that ask: timed out"
)
def slow(scenario: Scenario) -> None:
    """Let each review take two seconds."""
    seconds, began = scenario.lasts(2.0, 1.0), time.time()
    scenario.testbed.slow_reviews(seconds)
    try:
        scenario.go_on(60, 8)
    finally:
        ended = time.time()
        scenario.testbed.slow_reviews(0.0)
    # each is reviewed twice, to mutate it and to validate it
    meant = [one for one in scenario.load.waits if one.asks and began < one.began < ended - seconds]
    hasty = [one for one in meant if one.seconds < seconds]
    scenario.check("moments without a review", int(not meant))
    scenario.check("creations that were not slow", len(hasty))


@FAULTS.row("disk-full", broken="dies-of-a-full-disk", caught_by="unanswered rejections")
def full_disk(scenario: Scenario) -> None:
    """Let no process of Holdfast write to a file: what is logged fails."""
    replicas = scenario.testbed.replicas
    commands = [*replicas, *scenario.testbed.controllers]

    def lengths() -> list[int]:
        return [one.log.stat().st_size for one in commands]

    with limited(commands, psutil.RLIMIT_FSIZE, lambda _: 1):
        before = lengths()
        answered = refused(replicas)
        scenario.go_on(60, 8)
        answered += refused(replicas)
        written = sum(lengths()) - sum(before)
    scenario.check("unanswered rejections", 2 * REFUSALS * len(replicas) - answered)
    scenario.check("bytes logged anyway", written)
    full = lengths()
    refused(replicas)
    mute = [
        then for then, now in zip(full[: len(replicas)], lengths(), strict=False) if now == then
    ]
    scenario.check("replicas that log nothing afterwards", len(mute))


def refused(replicas: Iterable[Command]) -> int:
    """Ask replicas for what they refuse, and log that they do; count their proper answers."""
    body = json.dumps(make_review(make_pod({"delay": "tomorrow"})))
    headers = {"Content-Type": "application/json"}
    context, right = ssl._create_unverified_context(), 0
    for each in replicas:
        for _ in range(REFUSALS):
            client = HTTPSConnection(each.address, timeout=PATIENCE, context=context)
            with closing(client), suppress(OSError, HTTPException, ValueError):
                client.request("POST", "/mutate", body, headers)
                answer = json.loads(client.getresponse().read())
                right += answer["response"]["allowed"] is False
    return right


@FAULTS.row(
    "descriptors-exhausted",
    broken="dies-without-descriptors",
    caught_by="moments without a held pod",
    refuses=True,
)
def no_descriptors(scenario: Scenario) -> None:
    """Let no replica open another file or connection."""
    replicas, load = scenario.testbed.replicas, scenario.load
    known = [refusals(one) for one in replicas]
    with (
        limited(replicas, psutil.RLIMIT_NOFILE, lambda one: one.num_fds()),
        filled(replicas) as taken,
    ):
        since, before = time.time(), len(load.due)
        scenario.go_on(60, 8)
        held = len(load.due) - before
        failed = [one for one in load.failures if one.at >= since and one.wish.delay]
    accepted = [one for one, then in zip(replicas, known, strict=True) if refusals(one) == then]
    scenario.check("replicas that never failed to accept", len(accepted))
    scenario.check("moments without a held pod", int(not held))
    scenario.check(
        "share refused meanwhile of what asks", len(failed) / max(1, len(failed) + held), SPARE
    )
    scenario.figures |= {"held meanwhile": held, "refused meanwhile": len(failed), "taken": taken}
    since = time.time()
    scenario.go_on(ENDING + _BEYOND)
    scenario.check("seconds until errors ended", errors_end(scenario, since), ENDING)


@contextmanager
def filled(replicas: Iterable[Command]) -> Iterator[int]:
    """Take the remaining descriptors with clients that sent one request; yield how many."""
    context = ssl._create_unverified_context()
    taken = 0
    with ExitStack() as stack:
        for each in replicas:
            for _ in range(MOST_LEFT):
                client = stack.enter_context(
                    closing(HTTPSConnection(each.address, timeout=NOTICED, context=context))
                )
                try:
                    client.request("GET", "/healthz")
                    client.getresponse().read()
                except OSError:
                    break
                taken += 1
        yield taken


def refusals(replica: Command) -> int:
    """Count how often a replica has logged that it cannot accept a connection."""
    return replica.log.read_text().count("cannot accept connections")


@contextmanager
def limited(
    commands: Iterable[Command], kind: int, most: Callable[[psutil.Process], int]
) -> Iterator[None]:
    """Set a limit of the system for these commands' processes while the block lasts."""
    before = {}
    for command in commands:
        before[command.pid] = psutil.Process(command.pid).rlimit(kind)
        for process in family(command.pid):
            process.rlimit(kind, (most(process), before[command.pid][1]))
    try:
        yield
    finally:
        for pid, usual in before.items():
            for process in family(pid):
                process.rlimit(kind, usual)
