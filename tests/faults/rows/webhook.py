"""The admission servers are killed, paused, down, slow, or out of memory, disk or descriptors."""

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

FAULTS = Table()

ERRORS_END = 5.0
"""Seconds in which errors end after one replica has ended."""
KUBELET_SECONDS = 1.0
"""Seconds until a kubelet notices that a container has ended, and restarts it."""
_MARGIN = 12.0
"""Extra seconds if a process has to start on an overloaded machine, or if probes have to fail."""
_TIMEOUT = 7.0
"""Seconds to wait after a limit: a failed call is only known when it has timed out."""
PEAK = 40
"""Creations in flight, for which the API server opens connections that it seldom needs."""
MAX_FREE = 32
"""Descriptors below a process's limit that may be free, since they were closed."""

INVALID_REVIEWS = 10
"""Invalid reviews that are sent to each replica, which it rejects and logs."""
REVIEW_TIMEOUT = 3.0
"""Seconds for a response, as in the webhook configurations."""

MAX_REJECTED = 0.2
"""The share of delayed pods that may be rejected while no connection can be opened: those that are
created while all open connections are in use."""


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a replica's processes: the worker, then gunicorn's arbiter."""
    arbiter = psutil.Process(pid)
    return [*arbiter.children(recursive=True), arbiter]


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes together, as at the end of a container."""
    for process in processes:
        process.kill()


def check_errors_end(scenario: Scenario, since: float, limit: float = ERRORS_END) -> None:
    """Check that creations failed for at most `limit` seconds after `since`."""
    scenario.wait(max(0.0, since + limit + _TIMEOUT - time.time()))
    failures = [failure.at - since for failure in scenario.load.failures if failure.by_webhook]
    scenario.check("seconds until errors ended", max([0.0, *failures]), limit)


def busiest(scenario: Scenario) -> int:
    """Return the number of the replica with the most connections from the API server.

    Connections are reused, and only opened when needed: one replica may have all of them.
    """
    counts = count_connections(scenario)
    scenario.check("no connected replica", int(not any(counts)))
    return counts.index(max(counts))


def count_connections(scenario: Scenario) -> Sequence[int]:
    """Count the open connections from the API server to each replica."""
    server = psutil.Process(scenario.testbed.plane.process(API_SERVER).pid)
    connections = server.net_connections("tcp")
    ports = Counter(
        connection.raddr.port
        for connection in connections
        if connection.status == psutil.CONN_ESTABLISHED
    )
    return [ports[scenario.testbed.installed.ports[number]] for number in (0, 1)]


@FAULTS.row(
    "webhook-killed", broken="serves-too-soon", caught_by="seconds until errors ended", rejects=True
)
def killed(scenario: Scenario) -> None:
    """Kill one replica, then the other; remove each from the Service and restart it."""
    first_number = busiest(scenario)
    for number in (first_number, 1 - first_number) * (1 if scenario.short else 2):
        scenario.testbed.taken_down.add(number)
        since = time.time()
        kill_all(process_tree(scenario.testbed.replicas[number].pid))
        scenario.wait(KUBELET_SECONDS)
        port = scenario.testbed.installed.ports[number]
        scenario.testbed.installed.join(number, port, ready=False)
        removal_seconds = time.time() - since
        scenario.testbed.replicas[number].kill()
        scenario.testbed.restart(number)
        check_errors_end(scenario, since, ERRORS_END + removal_seconds - KUBELET_SECONDS)


@FAULTS.row(
    "webhook-stopped",
    minutes=2.0,
    broken="fails-open",
    caught_by="delayed pods admitted without a gate",
    rejects=True,
)
def stopped(scenario: Scenario) -> None:
    """Pause one replica for half a minute, then the other: open connections get no responses.

    The API server keeps unused connections that it opened for a peak. It cannot know that the
    replica is paused: at the next peak, each of these connections fails one creation.
    """
    scenario.load.burst(PEAK, f"peak-{scenario.mark}")
    first_number = busiest(scenario)
    for number in (first_number, 1 - first_number):
        processes = process_tree(scenario.testbed.replicas[number].pid)
        since = time.time()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            scenario.wait(ERRORS_END + _MARGIN)
            removed_at = time.time()
            connection_count = count_connections(scenario)[number]
            scenario.load.burst(PEAK, f"peak-{number}-{scenario.mark}")
            scenario.wait(max(0.0, since + 30 - time.time()), _TIMEOUT)
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)
        failure_count = sum(
            failure.by_webhook and failure.at >= removed_at for failure in scenario.load.failures
        )
        scenario.check(
            "failed creations beyond one per connection", max(0, failure_count - connection_count)
        )
        scenario.wait(ERRORS_END)


@FAULTS.row(
    "webhook-out-of-memory",
    minutes=2.0,
    broken="leaves-the-dead",
    caught_by="seconds until errors ended",
    rejects=True,
)
def out_of_memory(scenario: Scenario) -> None:
    """Kill the worker of each replica, as the kernel does when memory runs out."""
    for number in (0, 1) * (1 if scenario.short else 2):
        since = time.time()
        kill_all(process_tree(scenario.testbed.replicas[number].pid)[:-1])
        check_errors_end(scenario, since, ERRORS_END + _MARGIN)


@FAULTS.row(
    "webhook-down",
    tested=True,
    broken="fails-open",
    caught_by="delayed pods admitted without a gate",
    rejects=True,
)
def all_down(scenario: Scenario) -> None:
    """Stop both replicas for a minute."""
    scenario.testbed.taken_down |= {0, 1}
    failure_count = len(scenario.load.failures)
    for replica in scenario.testbed.replicas:
        kill_all(process_tree(replica.pid))
        replica.kill()
    scenario.wait(60, 6)
    rejections = [
        failure for failure in scenario.load.failures[failure_count:] if failure.pod.annotated
    ]
    scenario.check("no pods rejected", int(not rejections))
    for number in range(2):
        scenario.testbed.restart(number)
    check_errors_end(scenario, time.time())


@FAULTS.row("webhook-slow", broken="one-at-a-time", caught_by="annotated pods rejected: timed out")
def slow(scenario: Scenario) -> None:
    """Delay each review by two seconds."""
    seconds, began = scenario.long_or_short(2.0, 1.0), time.time()
    scenario.testbed.slow_reviews(seconds)
    try:
        scenario.wait(60, 8)
    finally:
        ended = time.time()
        scenario.testbed.slow_reviews(0.0)
    # each pod is reviewed twice: by the mutating and by the validating webhook
    latencies = [
        latency.seconds
        for latency in scenario.load.latencies
        if latency.annotated and began < latency.began < ended - seconds
    ]
    too_fast = [latency for latency in latencies if latency < seconds]
    scenario.check("no pods reviewed", int(not latencies))
    scenario.check("creations not slowed down", len(too_fast))


@FAULTS.row("disk-full", broken="dies-of-a-full-disk", caught_by="invalid reviews not rejected")
def full_disk(scenario: Scenario) -> None:
    """Prevent all processes of Holdfast from writing to files: logging fails."""
    replicas = scenario.testbed.replicas
    commands = [*replicas, *scenario.testbed.controllers]

    def lengths() -> list[int]:
        return [command.log.stat().st_size for command in commands]

    with limited(commands, psutil.RLIMIT_FSIZE, lambda _: 1):
        lengths_before = lengths()
        rejected_count = count_rejected(replicas)
        scenario.wait(60, 8)
        rejected_count += count_rejected(replicas)
        written_bytes = sum(lengths()) - sum(lengths_before)
    scenario.check(
        "invalid reviews not rejected", 2 * INVALID_REVIEWS * len(replicas) - rejected_count
    )
    scenario.check("bytes logged during the fault", written_bytes)
    old_lengths = lengths()
    count_rejected(replicas)
    mute_lengths = [
        old for old, new in zip(old_lengths[: len(replicas)], lengths(), strict=False) if new == old
    ]
    scenario.check("replicas that log nothing after the fault", len(mute_lengths))


def count_rejected(replicas: Iterable[Command]) -> int:
    """Send invalid reviews to replicas, and return how many of them were rejected."""
    body = json.dumps(make_review(make_pod({"delay": "tomorrow"})))
    headers = {"Content-Type": "application/json"}
    context, rejected_count = ssl._create_unverified_context(), 0
    for replica in replicas:
        for _ in range(INVALID_REVIEWS):
            client = HTTPSConnection(replica.address, timeout=REVIEW_TIMEOUT, context=context)
            with closing(client), suppress(OSError, HTTPException, ValueError):
                client.request("POST", "/mutate", body, headers)
                response = json.loads(client.getresponse().read())
                rejected_count += response["response"]["allowed"] is False
    return rejected_count


@FAULTS.row(
    "descriptors-exhausted",
    broken="dies-without-descriptors",
    caught_by="no pods held",
    rejects=True,
)
def no_descriptors(scenario: Scenario) -> None:
    """Prevent replicas from opening another file or connection."""
    replicas, load = scenario.testbed.replicas, scenario.load
    before_fault = [count_accept_errors(replica) for replica in replicas]
    with (
        limited(replicas, psutil.RLIMIT_NOFILE, lambda process: process.num_fds()),
        descriptors_taken(replicas),
    ):
        since, due_count = time.time(), len(load.due)
        scenario.wait(60, 8)
        held_count = len(load.due) - due_count
        failures = [
            failure for failure in load.failures if failure.at >= since and failure.pod.delay
        ]
    accepting_replicas = [
        replica
        for replica, error_count in zip(replicas, before_fault, strict=True)
        if count_accept_errors(replica) == error_count
    ]
    scenario.check("replicas that never failed to accept", len(accepting_replicas))
    scenario.check("no pods held", int(not held_count))
    scenario.check(
        "rejected share of delayed pods",
        len(failures) / max(1, len(failures) + held_count),
        MAX_REJECTED,
    )
    check_errors_end(scenario, time.time())


@contextmanager
def descriptors_taken(replicas: Iterable[Command]) -> Iterator[None]:
    """Use up the remaining descriptors with clients that sent one request."""
    context = ssl._create_unverified_context()
    with ExitStack() as stack:
        for replica in replicas:
            for _ in range(MAX_FREE):
                client = stack.enter_context(
                    closing(
                        HTTPSConnection(replica.address, timeout=KUBELET_SECONDS, context=context)
                    )
                )
                try:
                    client.request("GET", "/healthz")
                    client.getresponse().read()
                except OSError:
                    break
        yield


def count_accept_errors(replica: Command) -> int:
    """Count the log messages of a replica that it cannot accept connections."""
    return replica.log.read_text().count("cannot accept connections")


@contextmanager
def limited(
    commands: Iterable[Command], kind: int, limit: Callable[[psutil.Process], int]
) -> Iterator[None]:
    """Set a resource limit for all processes of these commands while the block runs."""
    limits = {}
    for command in commands:
        limits[command.pid] = psutil.Process(command.pid).rlimit(kind)
        for process in process_tree(command.pid):
            process.rlimit(kind, (limit(process), limits[command.pid][1]))
    try:
        yield
    finally:
        for pid, original in limits.items():
            for process in process_tree(pid):
                process.rlimit(kind, original)
