"""Requests of accounts and their responses, read from the API server's audit log as it grows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.namespace import Object, seconds

FORBIDDEN = 403
GRANTED = frozenset({200, 201, 404})
"""Status codes of permitted requests, including 404."""
_MADE = 201
_VERB = re.compile(r"cannot (\w+) resource")
_GUARDED = re.compile(r"needs the verb '(\w+)' on holds.holdfast.dev")


@dataclass(frozen=True)
class Request:
    """A request and its response; `group` is empty for the core group."""

    account: str
    verb: str
    group: str
    resource: str
    name: str
    uri: str
    status: int
    said: str
    at: float
    """The time at which it was received, in seconds since 1970."""

    @classmethod
    def read(cls, account: str, event: Object) -> Request:
        reference, response = event["objectRef"], event.get("responseStatus", {})
        return cls(
            account,
            event["verb"],
            reference.get("apiGroup", ""),
            reference["resource"],
            reference.get("name", ""),
            event["requestURI"],
            response.get("code", 0),
            response.get("message", ""),
            seconds(event["requestReceivedTimestamp"]),
        )

    @property
    def needed(self) -> Sequence[tuple[str, str, str]]:
        """Return group, resource and verb of each right that was needed, or missing if forbidden.

        Creating an object by an update or an apply also needs the right to create it; if that is
        missing, Kubernetes 1.30 names no verb. To release a pod takes the verb that the guard
        requires, too.
        """
        if guard_match := _GUARDED.search(self.said):
            return [("holdfast.dev", "holds", guard_match[1])]
        verbs = [self.verb, "create"] if self.status == _MADE else [self.verb]
        if self.status == FORBIDDEN:
            verb_match = _VERB.search(self.said)
            verbs = [verb_match[1] if verb_match else "create"]
        return [(self.group, self.resource, verb) for verb in verbs]


class AuditLog:
    def __init__(self, path: Path, accounts: Mapping[str, str]) -> None:
        """Open the log; `accounts` maps user names to the names that are used here."""
        self._file = path.open("rb")
        self._rest = b""
        self._accounts = accounts
        self._marks = [name.encode() for name in accounts]
        self._requests: list[Request] = []

    def close(self) -> None:
        self._file.close()

    def requests(self) -> list[Request]:
        """Return all requests so far, in the order of their responses."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            if any(mark in line for mark in self._marks):
                self._take(json.loads(line))
        return self._requests

    def _take(self, event: Object) -> None:
        account = self._accounts.get(event["user"]["username"])
        if account is not None and "objectRef" in event:
            self._requests.append(Request.read(account, event))
