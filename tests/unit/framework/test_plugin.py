from collections.abc import Iterator

import msgspec
import pytest

from holdfast.webhook.errors import HandleError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Allow, Args, Context, Plugin, overrides, skip
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.model.objects import ObjectKey, Pod
from holdfast.webhook.model.workloads import Workload
from tests.support.builders import read_pod, read_review
from tests.support.fakes import FakeApi
from tests.support.scripted import Scripted


def test_arguments_are_strict_and_immutable() -> None:
    class Some(Args, frozen=True):
        long_name: int = 5

    assert msgspec.convert({"longName": 6}, Some) == Some(long_name=6)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"long_name": 6}, Some)
    with pytest.raises(AttributeError):
        Some().long_name = 7  # type: ignore[misc]


@pytest.mark.parametrize("point", ["permit", "at_release", "start", "validate_workload"])
def test_overrides_detects_overridden_extension_points(point: str) -> None:
    overriding = type("Overriding", (Scripted,), {point: lambda *_: None})()

    assert not overrides(Scripted(), point)
    assert overrides(overriding, point)


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


class NoPods:
    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(())

    def get(self, _key: ObjectKey) -> None:
        return None

    def recheck(self, key: ObjectKey, at_ms: int = 0) -> None:
        raise AssertionError(key, at_ms)

    def allow(self, _key: ObjectKey, _plugin: str) -> None:
        raise AssertionError


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


def test_connected_handle_exposes_its_connections() -> None:
    def record(pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        events.append((pod.metadata.name, reason, note, warning))

    events: list[tuple[str, str, str, bool]] = []
    handle, waiting = Handle(), NoPods()
    handle.connect(lookup=ClusterLookup(FakeApi), waiting=waiting, record_event=record)
    handle.record_event(read_pod(), "Mind", "this", warning=True)

    assert handle.waiting is waiting
    assert events == [("web-0", "Mind", "this", True)]
