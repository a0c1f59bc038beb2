"""The API server's audit log: when it received and answered each request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec


class _Object(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    resource: str = ""
    subresource: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0


class Event(msgspec.Struct, rename="camel"):
    """An audited request. Times come from the API server's clock."""

    verb: str
    user_agent: str = ""
    stage: str = ""
    object_ref: _Object = _Object()
    response_status: _Status = _Status()
    request_received_timestamp: datetime | None = None
    stage_timestamp: datetime | None = None

    @property
    def received(self) -> float:
        """Time of the request, in seconds since 1970."""
        assert self.request_received_timestamp is not None  # noqa: S101 - every event has it
        return self.request_received_timestamp.timestamp()

    @property
    def answered(self) -> float:
        """Time of the response, in seconds since 1970."""
        assert self.stage_timestamp is not None  # noqa: S101 - every event has it
        return self.stage_timestamp.timestamp()


_EVENT = msgspec.json.Decoder(Event)


def releases(log: Path, namespace: str) -> list[Event]:
    """Return the successful patches of a namespace's pods."""
    return [
        event
        for event in _events(log, namespace)
        if event.verb == "patch"
        and event.object_ref.resource == "pods"
        and not event.object_ref.subresource
        and event.response_status.code == 200
    ]


def statuses(log: Path, namespace: str, resource: str, agent: str) -> dict[str, float]:
    """Return the time of each object's last status update from a client, by object name.

    Times are in seconds since 1970. `agent` is the start of the client's user agent.
    """
    return {
        event.object_ref.name: event.received
        for event in _events(log, namespace)
        if (event.object_ref.resource, event.object_ref.subresource) == (resource, "status")
        and event.user_agent.startswith(agent)
        and event.response_status.code == 200
    }


def bindings(log: Path, namespace: str) -> list[Event]:
    """Return the bindings of a namespace's pods to nodes."""
    return [
        event
        for event in _events(log, namespace)
        if event.object_ref.subresource == "binding" and event.response_status.code == 201
    ]


def _events(log: Path, namespace: str) -> Iterator[Event]:
    field = f'"namespace":"{namespace}"'.encode()
    with log.open("rb") as lines:
        for line in lines:
            if field in line and line.endswith(b"\n"):  # the last line may be incomplete
                event = _EVENT.decode(line)
                if event.stage == "ResponseComplete" and event.object_ref.namespace == namespace:
                    yield event
