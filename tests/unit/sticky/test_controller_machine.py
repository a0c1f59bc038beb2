"""No record is lost, in any order of events and wherever the controller is killed."""

import contextlib
from typing import Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.webhook.model import kubevirt
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from tests.support.vm_world import Driver, Killed, VmWorld, is_kept

NODES = st.sampled_from(["n1", "n2", "n3"])
STEPS = 60


class Machine(RuleBasedStateMachine):
    """One VM, the events that may affect it, and a controller that restarts.

    `home` is the node to which the VM must return; None while it may start anywhere.
    """

    on_migration: Literal["follow", "keep"] = "follow"

    def __init__(self) -> None:
        super().__init__()
        self.world = VmWorld(StickyArgs(on_migration=self.on_migration))
        self.driver = Driver(self.world)
        self.home: str | None = None
        self.starting = self.pin = ""
        self.moving: tuple[str, str] | None = None
        self.running = ""
        self.is_provisional = False
        """Whether the VM has no record and has not run since it was bound."""

    # --- the VM --------------------------------------------------------------------------------

    @precondition(lambda self: self.world.vmi() is None)
    @rule()
    def start(self) -> None:
        assert self.world.record() == (self.home or "")
        self.pin = self.world.record()
        self.starting = self.world.start()

    @precondition(lambda self: self.starting)
    @rule(node=NODES)
    def bind(self, node: str) -> None:
        self.running, self.starting = self.starting, ""
        self.world.bind(self.running, self.pin or node)
        self.is_provisional = self.home is None

    @precondition(lambda self: self.running)
    @rule()
    def get_ready(self) -> None:
        vmi = self.world.vmi()
        if vmi is not None and "nodeName" not in vmi["status"]:
            self.world.ready(node=self.node())
            self.home = self.node() if self.is_provisional else self.home
            self.is_provisional = False

    @precondition(lambda self: self.world.vmi() is not None)
    @rule()
    def stop(self) -> None:
        self.world.stop()
        self.is_provisional = False
        self.starting, self.running, self.moving = "", "", None

    @rule()
    def collect(self) -> None:
        self.world.collect()

    def node(self) -> str:
        pod = self.world.pod(self.running)
        assert pod is not None
        return str(pod["spec"]["nodeName"])

    # --- migrations ----------------------------------------------------------------------------

    def can_move(self) -> bool:
        vmi = self.world.vmi()
        return bool(self.running and vmi and vmi["status"].get("nodeName") and not self.moving)

    @precondition(can_move)
    @rule()
    def migrate(self) -> None:
        self.moving = self.world.migrate()

    @precondition(lambda self: self.moving)
    @rule(node=NODES)
    def bind_target(self, node: str) -> None:
        assert self.moving
        target = self.world.pod(self.moving[1])
        if target and "nodeName" not in target["spec"] and node != self.node():
            self.world.bind(self.moving[1], node)

    def may_succeed(self) -> bool:
        target = self.moving and self.world.pod(self.moving[1])
        return bool(target and target["spec"].get("nodeName"))

    @precondition(may_succeed)
    @rule(reported=st.booleans())
    def succeed(self, reported: bool) -> None:
        """Move the VM; after a shutdown, KubeVirt may still report the migration as failed."""
        assert self.moving
        job, pod = self.moving
        source = self.node()
        self.world.moved(job, pod)
        self.world.end(job, "Succeeded" if reported else "Failed")
        self.world.end_pod(self.running)
        self.running, self.moving = pod, None
        if self.on_migration == "follow" and self.home == source:
            self.home = self.node()

    @precondition(lambda self: self.moving)
    @rule()
    def fail(self) -> None:
        assert self.moving
        self.world.end(self.moving[0], "Failed")
        self.world.end_pod(self.moving[1])
        self.moving = None

    # --- user edits ----------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Return whether the controller has finished its work."""
        return not any(pod["spec"].get("nodeName") for pod in self.kept_pods())

    def kept_pods(self) -> list[dict[str, dict[str, str]]]:
        return [pod for pod in self.world.pods() if is_kept(pod)]

    @precondition(is_settled)
    @rule(node=NODES)
    def edit(self, node: str) -> None:
        self.world.write("vm", {kubevirt.STICKY_NODE: node})
        self.home = node

    @precondition(lambda self: self.is_settled() and self.world.record())
    @rule()
    def clear(self) -> None:
        self.world.write("vm", {kubevirt.STICKY_NODE: None})
        self.home = None

    # --- the controller ------------------------------------------------------------------------

    @rule(restart=st.booleans())
    def control(self, restart: bool) -> None:
        if restart:
            self.driver.restart()
        assert {result.problem for result in self.driver.work()} <= {""}
        self.world.collect()

    @rule(
        method=st.sampled_from(["GET", "PATCH"]),
        number=st.integers(0, 8),
        carried_out=st.booleans(),
    )
    def control_and_kill(self, method: str, number: int, carried_out: bool) -> None:
        """Kill the controller before a request, or after the API server has executed it."""
        api = self.world.api
        (api.after if carried_out else api.before)(method, *([_nothing] * number), _kill)
        with contextlib.suppress(Killed):
            self.driver.work()
        api.forget_actions()
        self.driver.restart()
        self.world.collect()

    # --- invariants ----------------------------------------------------------------------------

    @invariant()
    def settled_record_matches_home(self) -> None:
        if self.is_settled():
            assert self.world.record() == (self.home or "")

    def teardown(self) -> None:
        """Let the controller finish; only pods that have to wait keep their finalizer."""
        self.driver.restart()
        self.driver.work()
        names = {str(pod["metadata"]["name"]) for pod in self.kept_pods()}
        if not self.moving:  # otherwise earlier migrations are not settled either
            assert names <= {self.starting, self.running if self.is_provisional else ""}
        if self.running and not self.moving:
            assert self.world.record() == (self.home or "")


def _nothing() -> None:
    pass


def _kill() -> None:
    raise Killed


class KeepMachine(Machine):
    on_migration = "keep"


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestFollow = Machine.TestCase
TestFollow.settings = SETTINGS
TestKeep = KeepMachine.TestCase
TestKeep.settings = SETTINGS
