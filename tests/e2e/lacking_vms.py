"""What is done to have Holdfast need a right on KubeVirt's objects, or a node, that it lacks.

Each function does it, and returns what tells whether it got done after all.
"""

from __future__ import annotations

from controlplane.errors import ControlPlaneError
from docs.rights import Right
from tests.e2e import machines, vms
from tests.e2e.deprived import Stage
from tests.e2e.lacking import Done, events, forget
from tests.e2e.machines import create_as_kubevirt, launcher, record
from tests.e2e.world import Object

HERE, THERE = "node-1", "node-2"


def landed(stage: Stage, right: Right) -> Done:
    """Start a VM that has never run."""
    name = f"landed-{right.verb}-{right.resource}"
    _, instance = machines.make(stage.world, name)
    create_launcher(stage, launcher(instance))
    return lambda: bool(record(stage.world, name))


def create_launcher(stage: Stage, manifest: Object) -> None:
    """Create a pod as KubeVirt does, who tries again while a webhook refuses."""
    stage.world.eventually(lambda: created(stage, manifest))


def created(stage: Stage, manifest: Object) -> bool:
    try:
        create_as_kubevirt(stage.world, manifest)
    except ControlPlaneError as exc:
        if "webhook" not in str(exc):
            raise
        return False
    return True


def moved_in(stage: Stage, right: Right) -> Done:
    """Have a VMI run, of which no list tells, though the VM has no record."""
    forget(stage, right)
    machines.make(stage.world, "moved-in", on=HERE)
    stage.await_refusal(right)
    return lambda: record(stage.world, "moved-in") == HERE


def opted_in(stage: Stage, right: Right) -> Done:
    """Have a VM stick that runs already, of which no list tells."""
    read = stage.answered(right._replace(verb="get", name="opted-in"))
    machines.make(stage.world, "opted-in", sticky="false", on=HERE)
    stage.world.eventually(read)  # its VMI is known
    forget(stage, right)
    stage.world.kubectl("annotate", "vm", "opted-in", "holdfast.dev/sticky=true", "--overwrite")
    stage.await_refusal(right)
    return lambda: record(stage.world, "opted-in") == HERE


def migrating(stage: Stage, name: str) -> tuple[Object, Done]:
    """Make a VM that is being migrated; tell whether its new pod is let go."""
    _, instance = machines.make(stage.world, name, record=HERE, on=HERE)
    made = stage.world.create(vms.migration(name, name))
    manifest = launcher(
        instance,
        labels={vms.MIGRATION_JOB: vms.uid(made)},
        annotations={"kubevirt.io/migrationJobName": name},
    )
    pod_name = manifest["metadata"]["name"]
    return manifest, lambda: not stage.world.get("pod", pod_name)["metadata"].get("finalizers")


def end_migration(stage: Stage, name: str) -> None:
    patch = ("--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Failed"}}')
    stage.world.kubectl("patch", "vmim", name, *patch)


def ended(stage: Stage, right: Right) -> Done:
    """Have a migration end, of which no list tells."""
    manifest, done = migrating(stage, "ended")
    create_launcher(stage, manifest)
    name = manifest["metadata"]["name"]
    stage.world.eventually(lambda: is_ready(stage.world.get("pod", name)))
    forget(stage, right)
    end_migration(stage, "ended")
    stage.await_refusal(right)
    return done


def is_ready(seen: Object) -> bool:
    conditions = seen["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def over(stage: Stage, right: Right) -> Done:
    """Have a migration's pod made when the migration has ended."""
    manifest, done = migrating(stage, "over")
    end_migration(stage, "over")
    create_launcher(stage, manifest)
    return done


def cordoned(stage: Stage, right: Right) -> Done:
    """Start a VM whose node is cordoned."""
    stage.world.kubectl("cordon", THERE)
    stage.afterwards.callback(stage.world.kubectl, "uncordon", THERE)
    _, instance = machines.make(stage.world, "cordoned", record=THERE)
    create_launcher(stage, launcher(instance))
    return lambda: bool(events(stage, "StickyNodeUnavailable"))


def looked_up(stage: Stage, right: Right) -> Done:
    """Have KubeVirt make the pod of a VM with a record."""
    name = f"looked-up-{right.resource}"
    _, instance = machines.make(stage.world, name, record=HERE)
    manifest = launcher(instance)
    assert not created(stage, manifest)
    return lambda: created(stage, manifest)
