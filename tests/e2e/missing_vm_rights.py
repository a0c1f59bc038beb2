"""Actions that make Holdfast need a missing right on a node or on KubeVirt's objects.

Each function acts, and returns a function that checks whether the action succeeded.
"""

import itertools

from controlplane.errors import ControlPlaneError
from docs.rights import Right
from tests.e2e import fake_kubevirt, vms
from tests.e2e.fake_kubevirt import create_as_kubevirt, launcher, record
from tests.e2e.missing_rights import Done, events, forget
from tests.e2e.namespace import Object
from tests.e2e.revoked_rights import RightsFixture

HERE, THERE = "node-1", "node-2"


def landed(stage: RightsFixture, right: Right) -> Done:
    """Start a VM that has never run."""
    name = f"landed-{right.verb}-{right.resource}"
    _, instance = fake_kubevirt.make(stage.ns, name)
    create_launcher(stage, launcher(instance))
    fake_kubevirt.run(stage.ns, name)
    return lambda: bool(record(stage.ns, name))


def create_launcher(stage: RightsFixture, manifest: Object) -> None:
    """Create a pod as KubeVirt does, which retries while a webhook rejects it."""
    stage.ns.eventually(lambda: created(stage, manifest))


def created(stage: RightsFixture, manifest: Object, *, user: str = fake_kubevirt.KUBEVIRT) -> bool:
    try:
        create_as_kubevirt(stage.ns, manifest, user=user)
    except ControlPlaneError as exc:
        if "webhook" not in str(exc):
            raise
        return False
    return True


def moved_in(stage: RightsFixture, right: Right) -> Done:
    """Run a VMI of a VM without a record while VMIs cannot be listed."""
    forget(stage, right)
    fake_kubevirt.make(stage.ns, "moved-in", on=HERE)
    stage.await_refusal(right)
    return lambda: record(stage.ns, "moved-in") == HERE


def opted_in(stage: RightsFixture, right: Right) -> Done:
    """Make a running VM sticky while VMs cannot be listed."""
    answered = stage.answered(right._replace(verb="get", name="opted-in"))
    fake_kubevirt.make(stage.ns, "opted-in", sticky="false", on=HERE)
    stage.ns.eventually(answered)  # the controller knows its VMI
    forget(stage, right)
    stage.ns.kubectl("annotate", "vm", "opted-in", "holdfast.dev/sticky=true", "--overwrite")
    stage.await_refusal(right)
    return lambda: record(stage.ns, "opted-in") == HERE


def migrating(stage: RightsFixture, name: str) -> tuple[Object, Done]:
    """Make a migrating VM; return its new pod's manifest, and a check for a removed finalizer."""
    _, instance = fake_kubevirt.make(stage.ns, name, record=HERE, on=HERE)
    migration = stage.ns.create(vms.migration(name, name))
    manifest = launcher(
        instance,
        labels={vms.MIGRATION_JOB: vms.uid(migration)},
        annotations={"kubevirt.io/migrationJobName": name},
    )
    pod_name = manifest["metadata"]["name"]
    return manifest, lambda: not stage.ns.get("pod", pod_name)["metadata"].get("finalizers")


def end_migration(stage: RightsFixture, name: str) -> None:
    patch = ("--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Failed"}}')
    stage.ns.kubectl("patch", "vmim", name, *patch)


def ended(stage: RightsFixture, right: Right) -> Done:
    """End a migration while migrations cannot be listed."""
    manifest, done = migrating(stage, "ended")
    create_launcher(stage, manifest)
    name = manifest["metadata"]["name"]
    stage.ns.eventually(lambda: is_ready(stage.ns.get("pod", name)))
    forget(stage, right)
    end_migration(stage, "ended")
    stage.await_refusal(right)
    return done


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def over(stage: RightsFixture, right: Right) -> Done:
    """Create the pod of a migration that has already ended."""
    manifest, done = migrating(stage, "over")
    end_migration(stage, "over")
    create_launcher(stage, manifest)
    return done


def cordoned(stage: RightsFixture, right: Right) -> Done:
    stage.ns.kubectl("cordon", THERE)
    stage.afterwards.callback(stage.ns.kubectl, "uncordon", THERE)
    _, instance = fake_kubevirt.make(stage.ns, "cordoned", record=THERE)
    create_launcher(stage, launcher(instance))
    return lambda: bool(events(stage, "StickyNodeUnavailable"))


def identified(stage: RightsFixture, right: Right) -> Done:
    """Create pods of VMs as an account that may be KubeVirt's, so that this is looked up again."""
    numbers = itertools.count()

    def is_created() -> bool:
        _, instance = fake_kubevirt.make(stage.ns, f"identified-{next(numbers)}", record=HERE)
        return created(stage, launcher(instance), user=fake_kubevirt.STRANGER)

    stage.ns.eventually(lambda: not is_created())
    return is_created


def looked_up(stage: RightsFixture, right: Right) -> Done:
    """Create the pod of a VM with a record, as KubeVirt."""
    name = f"looked-up-{right.resource}"
    _, instance = fake_kubevirt.make(stage.ns, name, record=HERE)
    manifest = launcher(instance)
    assert not created(stage, manifest)
    return lambda: created(stage, manifest)
