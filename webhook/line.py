"""What is due of one namespace: what is new and what is tried again, in turns.

Pure: no I/O, no clock, no locks.
"""

from __future__ import annotations

from collections import OrderedDict

from webhook.objects import Names


class Line:
    """Keys that wait, in their order; of those that failed before every second one is next."""

    __slots__ = ("_again", "_new", "_new_is_next")

    def __init__(self) -> None:
        self._new: OrderedDict[Names, None] = OrderedDict()
        self._again: OrderedDict[Names, None] = OrderedDict()
        self._new_is_next = True

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    def put(self, key: Names, *, again: bool) -> bool:
        """Add a key, and tell whether it was not there; one that was keeps its place."""
        if key in self._new or key in self._again:
            return False
        (self._again if again else self._new)[key] = None
        return True

    def take(self) -> Names:
        """Take what is next. Raises KeyError where nothing waits."""
        is_new = bool(self._new) and (self._new_is_next or not self._again)
        self._new_is_next = not is_new
        key, _ = (self._new if is_new else self._again).popitem(last=False)
        return key

    def discard(self, key: Names) -> bool:
        """Take a key out, and tell whether it was there."""
        for keys in (self._new, self._again):
            if key in keys:
                del keys[key]
                return True
        return False
