"""The VMIs that watches add to the queue, with two watches that report at the same time."""

from __future__ import annotations

from holdfast.webhook.model.kubevirt import STICKY, Instance, LauncherPod
from holdfast.webhook.model.objects import Metadata, ObjectKey
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
