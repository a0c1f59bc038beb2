"""Frozen namespaces on a real control plane: nothing in them is released."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from demo.command import Command
from tests.e2e.accounts import NAMESPACE, controller_kubeconfig
from tests.e2e.cli.commands import Cli
from tests.e2e.controllers import controller, gated
from tests.e2e.namespace import Namespace, gates, seconds
from tests.support.scrapes import metric

THAW_SECONDS = 10.0
"""Maximum time from the end of a freeze to the release of 500 due pods."""


@pytest.fixture
def ns(plain_ns: Namespace, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace next to Holdfast's own; both are thawed after the test."""
    controller_kubeconfig(plain_ns.plane, tmp_path / "account")
    yield plain_ns
    for name in (NAMESPACE, plain_ns.namespace):
        thaw = ("holdfast.dev/freeze-", "holdfast.dev/freeze-until-")
        plain_ns.plane.kubectl("annotate", "namespace", name, *thaw)


@pytest.fixture
def other(plain_ns: Namespace) -> Iterator[Namespace]:
    """Another namespace in that cluster."""
    ns = Namespace.create_new(plain_ns.plane, f"{plain_ns.namespace}-other")
    yield ns
    ns.delete_pods()


def holdfast(ns: Namespace, *arguments: str) -> str:
    scope = () if "--all" in arguments else ("-n", ns.namespace)
    result = Cli(ns.plane.kubeconfig, ns.namespace).run(*arguments, *scope)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def last_change(ns: Namespace) -> float:
    """Return when the API server received the last patch of the namespace."""
    return max(
        seconds(event["requestReceivedTimestamp"])
        for event in ns.audit()
        if event["objectRef"]["resource"] == "namespaces" and event["verb"] == "patch"
    )


def is_reported(ns: Namespace, name: str, reason: str) -> bool:
    """Return whether a Held event of a pod gives this reason; another one is for its delay."""
    return any(
        event["note"].endswith(reason)
        for event in ns.all("events.events.k8s.io")
        if (event["regarding"]["name"], event["reason"]) == (name, "Held")
    )


def frozen(process: Command, count: int) -> Callable[[], bool]:
    return lambda: metric(process, "holdfast_freezes ") == count


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_due_pods_wait_until_the_namespace_is_thawed(
    ns: Namespace, other: Namespace, log: Path, count: int
) -> None:
    output = holdfast(ns, "freeze", "--reason", "incident 42")
    assert output == f"namespace {ns.namespace} is frozen: incident 42\n"
    names = {f"web-{number}" for number in range(count)}
    ns.create_pods(gated(name, 1) for name in names)
    other.create_pods(gated(f"web-{number}", 1) for number in range(20))
    with controller(ns.plane.kubeconfig, log) as process:
        other.eventually(lambda: len(other.releases()) == 20)
        reason = f"namespace {ns.namespace} is frozen: incident 42"
        ns.eventually(lambda: is_reported(ns, "web-0", reason))
        process.kill()  # the freeze survives a restart of the controller
        process.start()
        other.apply(gated("new", 1))
        other.eventually(lambda: "new" in other.releases())
        time.sleep(3)
        assert ns.release_attempts() == {}
        assert metric(process, "holdfast_overdue_pods ") == 0

        assert holdfast(ns, "thaw") == f"the freeze of namespace {ns.namespace} has ended\n"
        ns.eventually(lambda: ns.releases().keys() == names)
    delays = [released_at - last_change(ns) for released_at in ns.releases().values()]
    assert 0 < min(delays) <= max(delays) <= THAW_SECONDS


def test_manual_release_works_while_all_namespaces_are_frozen(
    ns: Namespace, other: Namespace, log: Path
) -> None:
    assert holdfast(ns, "freeze", "--all", "--reason", "upgrade") == (
        "all namespaces are frozen: upgrade\n"
    )
    for namespace in (ns, other):
        namespace.apply(gated("a", 1), gated("b", 1))
    with controller(ns.plane.kubeconfig, log) as process:
        ns.eventually(frozen(process, 1))
        for namespace in (ns, other):
            namespace.eventually(
                partial(is_reported, namespace, "b", "all namespaces are frozen: upgrade")
            )
        assert holdfast(ns, "release", "a") == f"pod {ns.namespace}/a released\n"
        assert gates(ns.get("pod", "a")) == []
        time.sleep(2)
        assert gates(ns.get("pod", "b")) == gates(other.get("pod", "a"))
        assert holdfast(ns, "thaw", "--all") == "the freeze of all namespaces has ended\n"
        other.eventually(lambda: other.releases().keys() == {"a", "b"})
        ns.eventually(lambda: "b" in ns.releases())


def test_freeze_expires_on_time(ns: Namespace, log: Path) -> None:
    ns.apply(gated("web", 1))
    output = holdfast(ns, "freeze", "--reason", "x", "--for", "8s")
    with controller(ns.plane.kubeconfig, log) as process:
        ns.eventually(frozen(process, 1))
        ns.eventually(lambda: "web" in ns.releases())
        assert frozen(process, 0)()
    end = seconds(output.split("until ")[1].split(": ")[0])
    assert ns.releases()["web"] >= end


def test_role_allows_a_user_to_freeze_one_namespace(ns: Namespace, other: Namespace) -> None:
    ns.kubectl("create", "rolebinding", "ann", "--clusterrole=holdfast-freezer", "--user=ann")
    other.kubectl("create", "rolebinding", "ann", "--clusterrole=admin", "--user=ann")
    cli = Cli(ns.plane.kubeconfig_for("ann"), ns.namespace)
    freeze = ("freeze", "--reason", "x")
    assert cli.run(*freeze, "-n", ns.namespace).returncode == 0
    for scope in (("-n", other.namespace), ("--all",)):
        result = cli.run(*freeze, *scope)
        assert result.returncode == 1
        assert "bind the ClusterRole holdfast-freezer" in result.stderr


def test_commands_show_the_freeze(ns: Namespace) -> None:
    ns.apply(gated("web", 1))
    holdfast(ns, "freeze", "--reason", "incident 42")
    reason = f"namespace {ns.namespace} is frozen: incident 42"
    assert "delay=1s, freeze=incident 42" in holdfast(ns, "list")
    output = holdfast(ns, "explain", "web")
    assert f"is held: {reason}" in output
    assert f"end the freeze: holdfast thaw -n {ns.namespace}" in output
    result = Cli(ns.plane.kubeconfig, ns.namespace).run("doctor")
    assert f"WARNING  freezes: {reason}" in result.stdout
