"""signoff: hold pods that ask for it until somebody signs them off with an annotation."""

from holdfast import (
    Allow,
    Args,
    Context,
    Handle,
    Permit,
    Plugin,
    Pod,
    Result,
    Wait,
    edits,
    reject,
    skip,
    success,
)


class SignoffArgs(Args, frozen=True):
    """Arguments of the plugin; in the configuration file they are camelCase."""

    needs: str = "example.com/needs-signoff"
    signed_off_by: str = "example.com/signed-off-by"


class Signoff(Plugin):
    """Holds a pod with the annotation `needs` until it has the annotation `signed_off_by`."""

    name = "signoff"
    args_type = SignoffArgs
    may_block = False  # it does no I/O
    gate = "holdfast.dev/signoff"
    permit_is_final = True  # it depends on the pod only

    args: SignoffArgs

    def __init__(self, args: SignoffArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.keys = (args.needs, args.signed_off_by)

    def mutate(self, pod: Pod, _context: Context) -> Result:
        """Hold the pod."""
        return success(edits.AddGate(self.gate)) if self.args.needs in pod.annotations else skip()

    def validate(self, pod: Pod, _context: Context) -> Result:
        """Reject other values at `kubectl apply`."""
        if pod.annotations.get(self.args.needs, "true") != "true":
            return reject(f'annotation {self.args.needs}: use "true", or remove the annotation')
        return success()

    def permit(self, pod: Pod, _now_ms: int) -> Permit:
        """Allow the pod once it is signed off."""
        if self.args.signed_off_by in pod.annotations:
            return Allow()
        return Wait(reason=f"waits for annotation {self.args.signed_off_by}")
