"""A plugin that does what a pod's annotation says: raise, sleep, or answer rubbish."""

import time
from typing import Any

from holdfast.webhook.framework import cel
from holdfast.webhook.framework.plugin import Context, Plugin, Result, success
from holdfast.webhook.model.objects import Pod

KEY = "misbehave"


class Misbehaving(Plugin):
    """Takes no arguments, and says nothing of blocking: so it runs in the pool."""

    name = "misbehaving"

    def match(self, pod: str) -> str:
        return cel.has_annotation([KEY], pod)

    def concerns(self, pod: Pod) -> bool:
        return KEY in pod.annotations

    def mutate(self, pod: Pod, _context: Context) -> Any:
        match pod.annotations.get(KEY):
            case "raise":
                raise RuntimeError("as asked")
            case "sleep":
                time.sleep(6)
            case "rubbish":
                return ["rubbish"]
            case "edits":
                return success("rubbish")  # type: ignore[arg-type]
        return success()

    def validate(self, _pod: Pod, _context: Context) -> Result:
        return success()
