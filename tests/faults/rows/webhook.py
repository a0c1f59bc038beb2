"""The admission servers are killed, stopped, down, slow, or lack memory, disk or descriptors."""

from __future__ import annotations

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
from tests.faults.scene import Fault, Scene
from tests.unit.builders import make_pod, make_review

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


def errors_end(scene: Scene, since: float) -> float:
    """Tell how long after a moment creations failed still; 0 where none did."""
    failures = [one.at - since for one in scene.load.failures if one.by_webhook]
    return max([0.0, *(at for at in failures if at > 0)])


def busiest(scene: Scene) -> int:
    """Give the number of the replica that the API server is connected to most.

    Its connections are kept alive, and it opens no more than it needs: they may all lead to one.
    """
    found = connected(scene)
    scene.check("replicas that nobody is connected to", int(not any(found)))
    return found.index(max(found))


def connected(scene: Scene) -> Sequence[int]:
    """Count the connections that the API server has open to each replica."""
    server = psutil.Process(scene.arena.plane.process(API_SERVER).pid)
    connections = server.net_connections("tcp")
    ports = Counter(one.raddr.port for one in connections if one.status == psutil.CONN_ESTABLISHED)
    return [ports[scene.arena.installed.ports[number]] for number in (0, 1)]


def killed(scene: Scene) -> None:
    """Kill one replica, then the other; as a kubelet does, have it leave, and start it again."""
    first = busiest(scene)
    for number in (first, 1 - first) * (1 if scene.short else 2):
        scene.arena.resting.add(number)
        since = time.time()
        end(family(scene.arena.replicas[number].pid))
        scene.go_on(NOTICED)
        port = scene.arena.installed.ports[number]
        scene.arena.installed.join(number, port, ready=False)
        out = time.time() - since
        scene.arena.replicas[number].kill()
        scene.arena.revive(number)
        most = ENDING + out - NOTICED
        scene.go_on(max(0.0, since + most + _BEYOND - time.time()))
        scene.figures["seconds until the Service knew"] = round(out, 1)
        scene.check("seconds until errors ended", errors_end(scene, since), most)


def stopped(scene: Scene) -> None:
    """Stop one replica for half a minute, then the other: connections stay open, nothing comes.

    Those that the API server had opened for a peak lie unused, and it cannot know that nobody
    answers there: when the next peak comes, each of them fails one creation.
    """
    scene.load.burst(PEAK, f"peak-{scene.mark}")
    first = busiest(scene)
    for number in (first, 1 - first):
        processes = family(scene.arena.replicas[number].pid)
        since = time.time()
        for each in processes:
            each.send_signal(signal.SIGSTOP)
        try:
            scene.go_on(ENDING + _MARGIN)
            out = time.time()
            unused = connected(scene)[number]
            scene.load.burst(PEAK, f"peak-{number}-{scene.mark}")
            scene.go_on(max(0.0, since + 30 - time.time()), _BEYOND)
        finally:
            for each in processes:
                each.send_signal(signal.SIGCONT)
        failed = sum(one.by_webhook and one.at >= out for one in scene.load.failures)
        scene.figures[f"connections to stopped replica {number}"] = unused
        scene.figures[f"creations that these failed, {number}"] = failed
        scene.check("creations failed beyond one for each connection", max(0, failed - unused))
        scene.go_on(ENDING)


def out_of_memory(scene: Scene) -> None:
    """Kill the worker of each replica, as the kernel does where memory runs out."""
    for number in (0, 1) * (1 if scene.short else 2):
        since = time.time()
        end(family(scene.arena.replicas[number].pid)[:-1])
        scene.go_on(ENDING + _MARGIN + _BEYOND)
        scene.check("seconds until errors ended", errors_end(scene, since), ENDING + _MARGIN)


def all_down(scene: Scene) -> None:
    """Have both replicas down for a minute."""
    scene.arena.resting |= {0, 1}
    before = len(scene.load.failures)
    for each in scene.arena.replicas:
        end(family(each.pid))
        each.kill()
    scene.go_on(60, 6)
    refused = [one for one in scene.load.failures[before:] if one.wish.asks]
    scene.check("moments in which nobody was refused", int(not refused))
    for number in range(2):
        scene.arena.revive(number)
    since = time.time()
    scene.go_on(ENDING + _BEYOND)
    scene.check("seconds until errors ended", errors_end(scene, since), ENDING)


def slow(scene: Scene) -> None:
    """Let each review take two seconds."""
    seconds, began = scene.lasts(2.0, 1.0), time.time()
    scene.arena.slow_reviews(seconds)
    try:
        scene.go_on(60, 8)
    finally:
        ended = time.time()
        scene.arena.slow_reviews(0.0)
    # each is reviewed twice, to mutate it and to validate it
    meant = [one for one in scene.load.waits if one.asks and began < one.began < ended - seconds]
    hasty = [one for one in meant if one.seconds < seconds]
    scene.check("moments in which nobody asked", int(not meant))
    scene.check("creations that were not slow", len(hasty))


def full_disk(scene: Scene) -> None:
    """Let no process of Holdfast write to a file: what is logged fails."""
    replicas = scene.arena.replicas
    commands = [*replicas, *scene.arena.controllers]

    def lengths() -> list[int]:
        return [one.log.stat().st_size for one in commands]

    with limited(commands, psutil.RLIMIT_FSIZE, lambda _: 1):
        before = lengths()
        answered = refused(replicas)
        scene.go_on(60, 8)
        answered += refused(replicas)
        written = sum(lengths()) - sum(before)
    scene.check("refusals that were not answered", 2 * REFUSALS * len(replicas) - answered)
    scene.check("bytes that were logged all the same", written)
    full = lengths()
    refused(replicas)
    mute = [
        then for then, now in zip(full[: len(replicas)], lengths(), strict=False) if now == then
    ]
    scene.check("replicas that log nothing afterwards", len(mute))


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


def no_descriptors(scene: Scene) -> None:
    """Let no replica open another file or connection."""
    replicas, load = scene.arena.replicas, scene.load
    known = [refusals(one) for one in replicas]
    with (
        limited(replicas, psutil.RLIMIT_NOFILE, lambda one: one.num_fds()),
        filled(replicas) as taken,
    ):
        since, before = time.time(), len(load.due)
        scene.go_on(60, 8)
        held = len(load.due) - before
        failed = [one for one in load.failures if one.at >= since and one.wish.delay]
    accepted = [one for one, then in zip(replicas, known, strict=True) if refusals(one) == then]
    scene.check("replicas that never failed to accept", len(accepted))
    scene.check("moments in which nobody was held", int(not held))
    scene.check(
        "share refused meanwhile of what asks", len(failed) / max(1, len(failed) + held), SPARE
    )
    scene.figures |= {"held meanwhile": held, "refused meanwhile": len(failed), "taken": taken}
    since = time.time()
    scene.go_on(ENDING + _BEYOND)
    scene.check("seconds until errors ended", errors_end(scene, since), ENDING)


@contextmanager
def filled(replicas: Iterable[Command]) -> Iterator[int]:
    """Have the descriptors that are left taken by clients that asked once, and tell how many."""
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


FAULTS = [
    Fault(
        "webhook-killed",
        1,
        killed,
        broken="serves-too-soon",
        caught_by="seconds until errors ended",
        refuses=True,
        means="Calls to the dead replica fail until the Service knows, and pods that ask are "
        "refused for that long: none is let through unheld.",
    ),
    Fault(
        "webhook-stopped",
        1,
        stopped,
        minutes=2.0,
        broken="fails-open",
        caught_by="delayed pods let through",
        refuses=True,
        means="Calls to the replica time out after 3 s, and are refused, until its readiness "
        "probe has failed twice. A connection that the API server opened to it for a peak, and has "
        "not used since, fails one creation more; after 90 s unused it is closed. Back again, the "
        "replica serves on.",
    ),
    Fault(
        "webhook-out-of-memory",
        1,
        out_of_memory,
        minutes=2.0,
        broken="leaves-the-dead",
        caught_by="seconds until errors ended",
        refuses=True,
        means="Where the kernel kills the worker alone, its parent keeps the port and starts "
        "another at once. Where it kills the container (cgroup v2, since Kubernetes 1.28), that is "
        "`webhook-killed`.",
    ),
    Fault(
        "webhook-down",
        1,
        all_down,
        tested=True,
        broken="fails-open",
        caught_by="delayed pods let through",
        refuses=True,
        means="Pods that ask for nothing are created; those that ask are refused, and their "
        "controllers try again. Held pods are released on time all the same.",
    ),
    Fault(
        "webhook-slow",
        1,
        slow,
        broken="one-at-a-time",
        caught_by="creations refused that ask: timed out",
        means="Creations take as much longer, and none fails: the API server waits for 3 s a "
        "call, and a review of a VM's pod has 2.5 s.",
    ),
    Fault(
        "disk-full",
        1,
        full_disk,
        broken="dies-of-a-full-disk",
        caught_by="refusals that were not answered",
        means="Log lines are lost. Nothing else is.",
    ),
    Fault(
        "descriptors-exhausted",
        1,
        no_descriptors,
        broken="dies-without-descriptors",
        caught_by="moments in which nobody was held",
        refuses=True,
        means="Connections that are open serve on, the API server's among them, and pods are held. "
        "New ones wait until one closes: a replica that cannot take its probes leaves the Service "
        "until it can. What the API server would have to open a connection for is refused "
        "meanwhile.",
    ),
]
