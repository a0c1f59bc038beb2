"""approval: pods that ask for it wait until somebody approves them by an annotation."""

from webhook import conditions
from webhook.framework import Args, Context, Handle, Result, refuse, skip, success
from webhook.holds import NEVER_MS, Due
from webhook.objects import Pod
from webhook.review import AddGate


class ApprovalArgs(Args, frozen=True):
    """Arguments of the plugin, as they stand in the configuration file."""

    needs: str = "example.com/needs-approval"
    approved_by: str = "example.com/approved-by"


class Approval:
    """Holds a pod with the annotation `needs` until it has the annotation `approved_by`."""

    name = "approval"
    args_type = ApprovalArgs
    may_block = False  # it asks nobody, so it may run where the review arrives
    gate = "holdfast.dev/approval"

    def __init__(self, args: ApprovalArgs, _handle: Handle) -> None:
        self.args = args
        self.keys = (args.needs, args.approved_by)  # what the guard watches over

    def match(self, pod: str) -> str:
        """Tell in CEL whom it concerns, so that the API server sends no other pod."""
        return conditions.has_annotation([self.args.needs], pod)

    def concerns(self, pod: Pod) -> bool:
        """Tell the same in Python."""
        return self.args.needs in pod.annotations

    def mutate(self, pod: Pod, _context: Context) -> Result:
        """Hold the pod."""
        return success(AddGate(self.gate)) if self.concerns(pod) else skip()

    def validate(self, pod: Pod, _context: Context) -> Result:
        """Refuse what makes no sense, where its author is looking."""
        if pod.annotations.get(self.args.needs, "true") != "true":
            return refuse(f'annotation {self.args.needs}: write "true", or leave it out')
        return success()

    def due(self, pod: Pod) -> Due:
        """Let it go once it is approved."""
        if self.args.approved_by in pod.annotations:
            return Due(pod.created_ms)
        return Due(NEVER_MS, f"waits for annotation {self.args.approved_by}")
