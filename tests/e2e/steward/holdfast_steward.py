"""A plugin that uses its handle: it looks up, goes through held pods, lets them go, and tells."""

from __future__ import annotations

from webhook import conditions
from webhook.errors import HandleError
from webhook.framework import Args, Context, Handle, Result, refuse, success
from webhook.holds import NEVER_MS, Due
from webhook.objects import Pod
from webhook.review import AddGate, SetAnnotation

KEY, SAW, MISSED = "steward", "steward-saw", "steward-missed"


class Steward:
    """Holds pods annotated `wait` until one annotated `free` is released; `fail` fails there."""

    name = "steward"
    args_type = Args
    gate = "holdfast.dev/steward"
    keys = (KEY,)

    def __init__(self, _args: Args, handle: Handle) -> None:
        self._handle = handle

    def match(self, pod: str) -> str:
        return conditions.has_annotation([KEY], pod)

    def concerns(self, pod: Pod) -> bool:
        return KEY in pod.annotations

    def mutate(self, pod: Pod, context: Context) -> Result:
        namespace = context.review.request.namespace
        found = self._handle.lookup.get(f"/api/v1/namespaces/{namespace}") or {}
        edits = [SetAnnotation(SAW, found["metadata"]["uid"])]
        try:
            _ = self._handle.held
        except HandleError as exc:
            edits.append(SetAnnotation(MISSED, str(exc)))
        return success(*edits, *([AddGate(self.gate)] if pod.annotations[KEY] == "wait" else []))

    def validate(self, _pod: Pod, _context: Context) -> Result:
        return success()

    def due(self, _pod: Pod) -> Due:
        return Due(NEVER_MS, "waits for a pod that frees it")

    def at_release(self, pod: Pod) -> Result:
        match pod.annotations[KEY]:
            case "fail":
                raise RuntimeError("as asked")
            case "free":
                for key in self._handle.held:
                    due = self._handle.held.get(key)
                    if due is not None and due.at_ms == NEVER_MS:
                        self._handle.held.release(key, self.name)
                self._handle.tell(pod, "Freed", "those that waited may go", warning=True)
                return refuse("too late to say no")
        return success()
