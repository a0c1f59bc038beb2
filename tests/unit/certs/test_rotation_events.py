"""API servers always trust the served leaves, whatever happens in any order."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.certs import authority, rotation
from holdfast.certs.authority import Certificate, KeyPair
from holdfast.certs.rotation import Action, Authority, Data, Observation, Plan, carry_out, next_step
from tests.unit.certs.certificates import NOW, PLAN, run_next_step

SHORT = Plan(PLAN.names, timedelta(hours=18), timedelta(hours=3), propagation=timedelta(seconds=60))
REPLICAS = 3


@lru_cache(10_000)
def is_trusted(certificate: Certificate, bundle: bytes) -> bool:
    """Return whether a client that trusts this bundle accepts the certificate, dates aside."""
    return any(authority.signed_by(certificate, ca) for ca in authority.read_all(bundle))


class World:
    """Secrets, replicas that mount them late, and API servers that see the bundle late."""

    def __init__(self) -> None:
        self.now = NOW
        self.ca: Data | None = None
        self.leaf: Data | None = None
        self.mounted: list[Data | None] = [None] * REPLICAS
        self.published: bytes | None = None
        self.changes: list[tuple[datetime, bytes]] = []
        self.since: dict[str, datetime] = {}
        self.issued = 0
        self.broken_until = NOW
        self.rescued = False
        self.backup: tuple[Data | None, Data | None] = None, None

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def served(self) -> list[Certificate]:
        return [authority.read(leaf["tls.crt"]) for leaf in self.mounted if leaf is not None]

    def known_bundles(self) -> list[bytes]:
        """Return the bundles that an API server may have: that of a minute ago, and all since."""
        cutoff = self.now - SHORT.propagation
        previous = [bundle for time, bundle in self.changes if time <= cutoff][-1:]
        return previous + [bundle for time, bundle in self.changes if time > cutoff]

    def check(self) -> None:
        if self.now < self.broken_until:
            return
        for certificate in self.served:
            if certificate.valid_at(self.now):
                assert all(is_trusted(certificate, bundle) for bundle in self.known_bundles())

    def observed(self, *, unknown: bool = False) -> Observation:
        bundles = [] if self.published is None else [self.published]
        self.since = {ca: self.since.get(ca, self.now) for ca in rotation.common(bundles)}
        trusted = {ca: self.now - since for ca, since in self.since.items()}
        served = [] if unknown else self.served
        return Observation(self.now, self.ca, self.leaf, bundles, trusted, served, unknown)

    def run_controller(self, *, writes: int, unknown: bool = False, publishes: bool = True) -> None:
        """Run a controller that is killed after this many writes."""
        forgotten = False
        for _ in range(writes):
            observed = self.observed(unknown=unknown)
            if forgotten:
                observed = replace(observed, bundles=[])
            step = next_step(observed, SHORT)
            if step is None:
                break
            data = carry_out(step, observed, SHORT)
            if step.action is Action.ISSUE:
                assert self.leaf is None or rotation.leaf_defect(
                    self.leaf, self.authority, self.now, SHORT
                )
                self.leaf = data
                self.issued += 1
                if not any(leaf.valid_at(self.now) for leaf in self.served):
                    # no valid leaf is served that could break: calls keep failing until the
                    # bundle for this leaf has reached every API server
                    self.broken_until = self.now + timedelta(days=10_000)
                    self.rescued = True
            else:
                self.ca = data
                forgotten = forgotten or step.action is Action.FORGET
        if publishes and self.ca is not None:
            self.publish()

    @property
    def authority(self) -> Authority:
        ca = Authority.read(self.ca)
        assert ca is not None
        return ca

    def publish(self) -> None:
        """Publish the bundle, the first time only if all replicas serve a leaf that it trusts."""
        ca = Authority.read(self.ca)
        if ca is None:
            return
        if ca.bundle == self.published:
            self.record_recovery(ca)
            return
        ready = len(self.served) == REPLICAS and all(
            leaf.valid_at(self.now) and is_trusted(leaf, ca.bundle) for leaf in self.served
        )
        if self.published is not None or ready:
            self.published = ca.bundle
            self.changes.append((self.now, ca.bundle))
            self.record_recovery(ca)

    def record_recovery(self, ca: Authority) -> None:
        """Record when calls that a lost CA broke must work again."""
        if self.rescued and self.published == ca.bundle:
            self.broken_until = self.now + SHORT.propagation
            self.rescued = False

    def mount(self, number: int) -> None:
        if self.leaf is not None and authority.pair_matches(
            KeyPair(self.leaf["tls.crt"], self.leaf["tls.key"])
        ):
            self.mounted[number] = self.leaf

    def back_up(self) -> None:
        self.backup = self.ca, self.leaf

    def restore(self) -> None:
        """Restore both Secrets; the replicas mount them after the API servers know the bundle."""
        self.ca, self.leaf = self.backup
        self.run_controller(writes=6)
        self.pass_time(61)
        self.check()

    def replace_ca(self) -> None:
        """Replace the CA, and wait until the old one is unused."""
        self.ca = None
        self.settle()

    def settle(self) -> None:
        """Run everything until nothing changes."""
        for _ in range(8):
            self.run_controller(writes=6)
            for number in range(REPLICAS):
                self.mount(number)
            self.run_controller(writes=6)
            self.pass_time(30)
            self.check()


EVENTS: Mapping[str, Any] = {
    "controller": lambda world: world.run_controller(writes=6),
    "controller killed after a write": lambda world: world.run_controller(
        writes=1, publishes=False
    ),
    "controller that gets no replies": lambda world: world.run_controller(writes=6, unknown=True),
    "new leader": lambda world: (world.since.clear(), world.run_controller(writes=6)),
    "mount 0": lambda world: world.mount(0),
    "mount 1": lambda world: world.mount(1),
    "mount 2": lambda world: world.mount(2),
    "leaf deleted": lambda world: setattr(world, "leaf", None),
    "leaf corrupted": lambda world: setattr(world, "leaf", {"tls.crt": b"?", "tls.key": b"?"}),
    "CA deleted": lambda world: setattr(world, "ca", None),
    "CA corrupted": lambda world: setattr(world, "ca", {"tls.crt": b"?"}),
    "backup": World.back_up,
    "CA restored": lambda world: setattr(world, "ca", world.backup[0]),
    "both restored": World.restore,
    "CA replaced": World.replace_ca,
}
PAUSES = st.sampled_from([0.0, 5.0, 30.0, 61.0, 600.0, 3600.0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), PAUSES), max_size=20))
@example([("CA replaced", 0.0), ("CA restored", 0.0), ("controller", 61.0)])
@example([("CA replaced", 0.0), ("CA restored", 0.0), ("controller that gets no replies", 61.0)])
@example([("CA replaced", 0.0), ("both restored", 0.0)])
def test_api_servers_always_trust_served_leaves(events: list[tuple[str, float]]) -> None:
    world = World()
    world.settle()
    world.back_up()
    for name, seconds in events:
        EVENTS[name](world)
        world.check()
        world.pass_time(seconds)
        world.check()
    world.settle()
    assert all(leaf.valid_at(world.now) for leaf in world.served)
    assert next_step(world.observed(), SHORT) is None
    issued = world.issued
    world.settle()
    assert world.issued <= issued + 1  # one renewal may be due, but not two


def test_excess_planted_cas_are_dropped() -> None:
    """The API server would reject a Secret or webhook configuration with all of them."""
    bundles = [authority.new_ca(str(number), now=NOW).certificate for number in range(99)]
    large_ca = authority.new_ca("large", now=NOW, dns_names=["x" * 60] * 99)
    ca = Authority.read(
        run_next_step(Observation(NOW, None, None, [large_ca.certificate, *bundles]))
    )
    assert ca is not None
    assert len(ca.bundle) < 1 << 15
    assert Authority.read({"tls.crt": large_ca.certificate, "tls.key": large_ca.key}) is None
