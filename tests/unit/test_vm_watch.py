"""What the recorder's watches ask it to look at, where two of them tell of something at once."""

from __future__ import annotations

from tests.fakes import FakeApi
from webhook.objects import Metadata, Names
from webhook.vm_watch import VmWatch
from webhook.vms import STICKY, Instance, LauncherPod

KEY = "default", "vm"


def test_pod_that_is_found_while_its_vmi_goes_is_looked_at() -> None:
    pod = LauncherPod(metadata=Metadata(namespace="default", name="vm", finalizers=[STICKY]))
    told: list[tuple[str, Names]] = []

    def over(key: Names) -> None:
        """Drop what was to be done, after another thread has found the pod and asked for a look."""
        watch._update_pod(pod)
        told.append(("over", key))

    watch = VmWatch(
        FakeApi(),
        lambda _: None,
        lambda key: told.append(("look", key)),
        over=over,
        enabled=True,
        on_restart=lambda _: None,
        may_sweep=lambda: True,
    )
    watch._remove_instance(Instance(Metadata(namespace="default", name="vm")))

    assert told == [("look", KEY), ("over", KEY), ("look", KEY)]
