"""A plugin that fails as a pod's annotation says: it raises, sleeps or returns invalid results."""

import time
from typing import Any

from holdfast.webhook.framework import cel
from holdfast.webhook.framework.plugin import Context, Plugin, Result, success
from holdfast.webhook.model.objects import Pod

KEY = "misbehave"


class Misbehaving(Plugin):
    """It does not declare whether it blocks, so it runs in the thread pool."""

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
