"""The report of `holdfast explain` on a pod, given the facts about it."""

from typing import Any

import msgspec

from holdfast.webhook.report import explanation, trace
from holdfast.webhook.report.next_steps import PodFacts
from holdfast.webhook.report.pod_status import PodWithStatus
from tests.support.builders import CREATED_MS, SECOND, make_decider, read_review

DECIDER = make_decider()


def explained(
    source: dict[str, Any],
    *,
    now_ms: int = CREATED_MS + 5 * SECOND,
    phase: str = "Pending",
    scheduled: dict[str, str] | None = None,
    **facts: Any,
) -> dict[str, str]:
    """Return the lines of each section; `scheduled` has the fields of condition PodScheduled."""
    conditions = [{"type": "PodScheduled", **scheduled}] if scheduled else []
    status = {"phase": phase, "conditions": conditions}
    pod = msgspec.convert({**source, "status": status}, PodWithStatus)
    result = trace.mutate(DECIDER.profiles, read_review(source), now_ms=now_ms)
    sections = explanation.explain(PodFacts(pod, now_ms, result, **facts), DECIDER)
    assert all(line.isprintable() for section in sections for line in section.lines)
    return {section.title.partition("/")[0]: "\n".join(section.lines) for section in sections}
