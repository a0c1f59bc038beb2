"""What there is to release of the pods that are held: what is due, under way, and tried again.

Pure: no I/O, no clock, no locks. Local times are seconds by whatever clock the caller has.
Due times are milliseconds since 1970 by the API server's.
"""

from __future__ import annotations

from webhook.fair_queue import FairQueue
from webhook.objects import Names
from webhook.release_queue import Held, ReleaseQueue
from webhook.retries import Retries

Task = tuple[Names, Held]
"""A pod that is due, as it was found to be: what changes from here on fails the patch's tests."""

DEALT_AT_ONCE = 1_000
"""How many of those that are due are dealt out by namespaces before the next is handed out."""


class Agenda:
    """What is due of the pods that are held, and when it is tried again.

    `most` is how many of one namespace may be under way, `first` with how many it begins.
    """

    def __init__(self, held: ReleaseQueue, most: int, *, first: int) -> None:
        self._held = held
        self._retries = Retries()
        self._turns = FairQueue(most, first=first)
        self._under_way: set[Names] = set()

    # --- what is due ---------------------------------------------------------------------------

    def take(self, now_ms: int, local: float) -> Task | None:
        """Hand out the next pod that is due, or None; `put_back` or `took` is to be called for it.

        Nothing is under way twice.
        """
        while (key := self._next(now_ms, local)) is not None:
            held = self._held.handed_out(key) if key not in self._under_way else None
            if held is not None and held.due_ms <= now_ms:
                self._under_way.add(key)
                return key, held
            self._turns.drop(key)  # it comes up by its time, or is gone, or its attempt plans anew
            if held is not None:
                self._held.retry(key)  # the API server's clock was set back
        return None

    def wait(self, now: float, local: float) -> float:
        """Tell in how many seconds something may be due; infinite where nothing waits.

        `now` is the API server's time, in seconds since 1970.
        """
        due_ms = self._held.next_due_ms()
        seconds = float("inf") if due_ms is None else due_ms / 1_000 - now
        return min(seconds, self._retries.next_at() - local)

    def has_room(self, namespace: str) -> bool:
        """Tell whether something of a namespace waits for its turn, and may have it."""
        return self._turns.has_room(namespace)

    def is_patient(self, key: Names, local: float) -> bool:
        """Tell whether a try is to wait for as long as admission may take.

        Only where one has hung before: what is not known to hang has no thread for so long.
        """
        return self._retries.has_failed(key) and self._turns.is_slow(key[0], local)

    # --- what is under way ---------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """How many pods have been handed out."""
        return len(self._under_way)

    @property
    def under_way_quickly(self) -> int:
        """How many of them are in no namespace in which releases take long."""
        return self.under_way - self._turns.count_slow()

    def put_back(self, key: Names) -> None:
        """Take back a pod with which nothing was begun."""
        self._under_way.discard(key)
        self._turns.drop(key)
        self._held.retry(key)

    def took(self, key: Names, seconds: float, local: float, *, worked: bool) -> bool:
        """Note that an attempt has ended; `failed` plans another one.

        Tells whether its namespace counts as slow by that, and did not before.
        """
        self._under_way.discard(key)
        return self._turns.took(key, seconds, local, worked=worked)

    def failed(self, key: Names, local: float, *, at_least: float) -> float:
        """Plan another try, and tell in how many seconds; see `Retries.failed`."""
        return self._retries.failed(key, now=local, at_least=at_least)

    def forget(self, key: Names) -> None:
        """Forget a pod, and that it ever failed."""
        self._held.discard(key)
        self._retries.forget(key)
        self._turns.discard(key)

    def _next(self, now_ms: int, local: float) -> Names | None:
        """Take what comes next of all that is due by now, or is to be tried again."""
        for _ in range(DEALT_AT_ONCE):
            if (key := self._retries.pop_due(local) or self._held.pop_due(now_ms)) is None:
                break
            self._turns.put(key, local, again=self._retries.has_failed(key))
        return self._turns.take(local)
