"""The VMIs that the watches add to the queue, also with concurrent watch events."""

from collections.abc import Callable

import msgspec
import pytest

from holdfast.webhook.model.kubevirt import STICKY, Instance, LauncherPod
from holdfast.webhook.model.objects import Metadata, ObjectKey, PodSpec, PodStatus
from holdfast.webhook.sticky.watches import VmWatch
from tests.support.fakes import FakeApi

KEY = "default", "vm"
KEPT = Metadata(namespace="default", name="vm", finalizers=[STICKY])


def make_watch(
    enqueue: Callable[[ObjectKey], None], drop: Callable[[ObjectKey], None] = lambda _: None
) -> VmWatch:
    return VmWatch(
        FakeApi(),
        lambda _: None,
        enqueue,
        drop=drop,
        enabled=True,
        on_restart=lambda _: None,
        may_sweep=lambda: True,
    )


def test_pod_found_during_vmi_deletion_is_queued() -> None:
    pod = LauncherPod(metadata=KEPT)
    calls: list[tuple[str, ObjectKey]] = []

    def drop(key: ObjectKey) -> None:
        """Drop the key from the queue, after another thread has found the pod and queued it."""
        watch._update_pod(pod)
        calls.append(("drop", key))

    watch = make_watch(lambda key: calls.append(("enqueue", key)), drop)
    watch._delete_instance(Instance(Metadata(namespace="default", name="vm")))

    assert calls == [("enqueue", KEY), ("drop", KEY), ("enqueue", KEY)]


@pytest.mark.parametrize(
    ("change", "count"),
    [
        pytest.param({"status": PodStatus("Running")}, 1, id="progress"),
        pytest.param({"status": PodStatus("Failed")}, 2, id="end"),
        pytest.param({"spec": PodSpec(node_name="n2")}, 2, id="node"),
        pytest.param({"metadata": Metadata("vm", namespace="default")}, 2, id="finalizer"),
    ],
)
def test_vmi_is_queued_only_for_relevant_pod_changes(change: dict[str, object], count: int) -> None:
    keys: list[ObjectKey] = []
    watch = make_watch(keys.append)
    watch._update_instance(Instance(Metadata(namespace="default", name="vm")))
    pod = LauncherPod(metadata=KEPT, spec=PodSpec(node_name="n1"))
    watch._update_pod(pod)
    changed_pod = msgspec.structs.replace(pod, **change)
    watch._update_pod(changed_pod)

    assert keys == [KEY] * count
    assert watch.pods_of(KEY) == ([changed_pod] if changed_pod.has_finalizer else [])
