"""Certificates at a given time, and the next step of their rotation."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from holdfast.certs import authority
from holdfast.certs.rotation import Action, Data, Observation, Plan, carry_out, next_step

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLAN = Plan(("hook", "hook.system", "hook.system.svc"))
DAY = timedelta(days=1)


def run_next_step(observed: Observation, *, plan: Plan = PLAN) -> Data:
    step = next_step(observed, plan)
    assert step is not None
    return carry_out(step, observed, plan)


@lru_cache
def first() -> tuple[Data, Data]:
    """Return the first CA and its leaf in a new cluster."""
    ca = run_next_step(Observation(NOW, None, None))
    return ca, run_next_step(Observation(NOW, ca, None))


def fingerprint(pem: bytes) -> str:
    return authority.read(pem).fingerprint


def trusted(ca: Data, seconds: float = 60.0, name: str = "tls.crt") -> dict[str, timedelta]:
    return {fingerprint(ca[name]): timedelta(seconds=seconds)}


def action(observed: Observation, plan: Plan = PLAN) -> Action | None:
    step = next_step(observed, plan)
    return step and step.action


def steady(now: datetime = NOW, **others: Any) -> Observation:
    ca, leaf = first()
    defaults: dict[str, Any] = {
        "authority": ca,
        "leaf": leaf,
        "bundles": [ca["tls.crt"]],
        "trusted": trusted(ca),
        "served": [authority.read(leaf["tls.crt"])],
    }
    return Observation(**{"now": now, **defaults, **others})


@lru_cache
def another() -> tuple[Data, Data]:
    ca = run_next_step(Observation(NOW, None, None))
    return ca, run_next_step(Observation(NOW, ca, None))
