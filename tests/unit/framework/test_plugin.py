import pytest

from holdfast.webhook.errors import HandleError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Allow, Args, Context, Plugin, skip
from holdfast.webhook.model.workloads import Workload
from tests.support.builders import read_pod, read_review


def test_extension_point_defaults() -> None:
    plugin, pod, template = Plugin(Args()), read_pod({"a": "1"}), read_pod()
    context = Context(read_review(), "*", 0)
    keyed_plugin = type("Keyed", (Plugin,), {"keys": ("a",)})(Args())

    assert not plugin.concerns(pod)
    assert (plugin.match("object"), plugin.skip_match("object")) == ("false", "false")
    assert (keyed_plugin.concerns(pod), keyed_plugin.concerns(template)) == (True, False)
    assert "'a' in object.metadata.annotations" in keyed_plugin.match("object")
    assert keyed_plugin.concerns_at_release(pod)
    assert plugin.mutate(pod, context) == plugin.validate(pod, context) == skip()
    assert plugin.at_release(pod) == plugin.validate_workload(Workload("x", "", ""), None) == skip()
    assert plugin.permit(pod, 0) == plugin.reserve(pod, 0) == Allow()
    assert not plugin.may_have_finalizer(read_review())
    assert plugin.may_block


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lookup", "lookups are not available: this process has no cluster connection"),
        ("waiting", "held pods are available in the controller only"),
        ("follow", "objects can be followed in the controller only"),
        ("record_event", "Events can be recorded in the controller only"),
    ],
)
def test_unconnected_handle_raises(name: str, expected: str) -> None:
    with pytest.raises(HandleError) as caught:
        getattr(Handle(), name)

    assert expected == str(caught.value)
