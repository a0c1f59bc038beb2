"""The VMIs that watches add to the queue, with two watches that report at the same time."""

import msgspec
import pytest

from holdfast.webhook.model.kubevirt import STICKY, Instance, LauncherPod
from holdfast.webhook.model.objects import Metadata, ObjectKey, PodSpec, PodStatus
from holdfast.webhook.sticky.watches import VmWatch
from tests.support.fakes import FakeApi

KEY = "default", "vm"


def test_pod_that_is_found_while_its_vmi_goes_is_looked_at() -> None:
    pod = LauncherPod(metadata=Metadata(namespace="default", name="vm", finalizers=[STICKY]))
    told: list[tuple[str, ObjectKey]] = []

    def over(key: ObjectKey) -> None:
        """Drop what was to be done, after another thread has found the pod and asked for a look."""
        watch._update_pod(pod)
        told.append(("over", key))

    watch = VmWatch(
        FakeApi(),
        lambda _: None,
        lambda key: told.append(("look", key)),
        drop=over,
        enabled=True,
        on_restart=lambda _: None,
        may_sweep=lambda: True,
    )
    watch._delete_instance(Instance(Metadata(namespace="default", name="vm")))

    assert told == [("look", KEY), ("over", KEY), ("look", KEY)]


@pytest.mark.parametrize(
    ("change", "looks"),
    [
        pytest.param({"status": PodStatus("Running")}, 1, id="progress"),
        pytest.param({"status": PodStatus("Failed")}, 2, id="its end"),
        pytest.param({"spec": PodSpec(node_name="n2")}, 2, id="its node"),
        pytest.param({"metadata": Metadata("vm", namespace="default")}, 2, id="its finalizer"),
    ],
)
def test_vmi_of_a_held_pod_is_looked_at_only_if_it_may_matter(
    change: dict[str, object], looks: int
) -> None:
    told: list[ObjectKey] = []
    watch = VmWatch(
        FakeApi(),
        lambda _: None,
        told.append,
        drop=lambda _: None,
        enabled=True,
        on_restart=lambda _: None,
        may_sweep=lambda: True,
    )
    watch._update_instance(Instance(Metadata(namespace="default", name="vm")))
    pod = LauncherPod(
        metadata=Metadata(namespace="default", name="vm", finalizers=[STICKY]),
        spec=PodSpec(node_name="n1"),
    )
    watch._update_pod(pod)
    changed = msgspec.structs.replace(pod, **change)
    watch._update_pod(changed)

    assert told == [KEY] * looks
    assert watch.pods_of(KEY) == ([changed] if changed.has_finalizer else [])
