"""A plugin that uses its handle: it looks up objects, releases held pods and records events."""

from holdfast.webhook.errors import HandleError
from holdfast.webhook.framework.plugin import Context, Permit, Plugin, Result, Wait, reject, success
from holdfast.webhook.model.annotations import NEVER_MS
from holdfast.webhook.model.edits import AddGate, SetAnnotation
from holdfast.webhook.model.objects import Pod

KEY, SAW, MISSED = "janitor", "janitor-saw", "janitor-missed"


class Janitor(Plugin):
    """Holds pods annotated `wait` until one annotated `free` is released; `fail` fails there."""

    name = "janitor"
    gate = "holdfast.dev/janitor"
    keys = (KEY,)

    def mutate(self, pod: Pod, context: Context) -> Result:
        namespace = context.review.request.namespace
        manifest = self.handle.lookup.get(f"/api/v1/namespaces/{namespace}") or {}
        edits = [SetAnnotation(SAW, manifest["metadata"]["uid"])]
        try:
            _ = self.handle.waiting
        except HandleError as exc:
            edits.append(SetAnnotation(MISSED, str(exc)))
        return success(*edits, *([AddGate(self.gate)] if pod.annotations[KEY] == "wait" else []))

    def validate(self, _pod: Pod, _context: Context) -> Result:
        return success()

    def permit(self, _pod: Pod, _now_ms: int) -> Permit:
        return Wait(reason="waits for a pod that frees it")

    def at_release(self, pod: Pod) -> Result:
        match pod.annotations[KEY]:
            case "fail":
                raise RuntimeError("as asked")
            case "free":
                for key in self.handle.waiting:
                    due = self.handle.waiting.get(key)
                    if due is not None and due.at_ms == NEVER_MS:
                        self.handle.waiting.allow(key, self.name)
                self.handle.record_event(pod, "Freed", "those that waited may go", warning=True)
                return reject("too late to say no")
        return success()
