"""The same webhook on kopf, started by `kopf run`.

PEER_PORT, PEER_CERT and PEER_KEY in the environment set its port and its certificate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import kopf  # type: ignore[import-not-found]

ANNOTATION, GATE = "delay", "holdfast.dev/delay"


@kopf.on.startup()  # type: ignore[untyped-decorator]
async def configure(settings: Any, **_: Any) -> None:
    """Listen on the benchmark's port. The benchmark registers the webhook itself."""
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1",
        port=int(os.environ["PEER_PORT"]),
        certfile=os.environ["PEER_CERT"],
        pkeyfile=os.environ["PEER_KEY"],
    )
    settings.admission.managed = None


@kopf.on.mutate("pods", id="mutate")  # type: ignore[untyped-decorator]
async def mutate(
    annotations: Mapping[str, str], spec: Mapping[str, Any], patch: Any, **_: Any
) -> None:
    """Add the gate if the delay is positive.

    Async, because kopf runs synchronous handlers in threads.
    """
    if _seconds(annotations) > 0:
        patch.spec["schedulingGates"] = [*spec.get("schedulingGates", ()), {"name": GATE}]


@kopf.on.validate("pods", id="validate")  # type: ignore[untyped-decorator]
async def validate(annotations: Mapping[str, str], **_: Any) -> None:
    """Reject a value that is not a number."""
    _seconds(annotations)


def _seconds(annotations: Mapping[str, str]) -> int:
    try:
        return int(annotations.get(ANNOTATION, "0"))
    except ValueError as exc:
        raise kopf.AdmissionError(f"annotation {ANNOTATION}: {exc}") from None
