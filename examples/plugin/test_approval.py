"""A plugin's test needs a dict and nothing else."""

from holdfast_approval import Approval, ApprovalArgs

from webhook.framework import Code, Handle
from webhook.holds import NEVER_MS
from webhook.objects import Pod

plugin = Approval(ApprovalArgs(), Handle())


def pod(**annotations: str) -> Pod:
    keys = {name.replace("_", "-"): value for name, value in annotations.items()}
    full = {f"example.com/{name}": value for name, value in keys.items()}
    return Pod.of({"metadata": {"annotations": full}})


def test_a_pod_waits_until_it_is_approved() -> None:
    assert plugin.due(pod(needs_approval="true")).at_ms == NEVER_MS
    assert plugin.due(pod(needs_approval="true", approved_by="ada")).at_ms == 0


def test_whom_it_concerns() -> None:
    assert plugin.concerns(pod(needs_approval="true"))
    assert not plugin.concerns(pod())
    assert "'example.com/needs-approval' in object.metadata.annotations" in plugin.match("object")


def test_nonsense_is_refused() -> None:
    result = plugin.validate(pod(needs_approval="maybe"), None)  # type: ignore[arg-type]
    assert result.code is Code.REFUSE
    assert 'write "true", or leave it out' in result.reason
