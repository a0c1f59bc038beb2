"""Place pods by rules, without a cluster."""

import json
from typing import Any

import msgspec

from holdfast.webhook.framework.json_patch import patch
from holdfast.webhook.framework.plugin import Code, Context, Plugin, Result
from holdfast.webhook.model.edits import Requirement, RequireNodes
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.plugins.placement import PLACED, Placement, PlacementArgs
from tests.support.builders import CREATED_MS, GATE, call, make_pipeline, make_pod, read_review
from tests.support.config_cases import ROLE, SPACE, rule
from tests.support.fakes import apply_patch
from tests.support.matching import REQUIRED
from tests.support.vm_builders import owner_of

EDGE_NODES = RequireNodes((Requirement(ROLE, "In", ("edge",)),))
SPACE_POD = {"type": "space"}
KNOWN: dict[str, type[Plugin]] = {"delay": Delay, "placement": Placement}
DAEMON_OWNER = owner_of("DaemonSet", "agent", "d", api_version="apps/v1")


def place(*rules: Any) -> Placement:
    return Placement(msgspec.convert({"rules": list(rules)}, PlacementArgs))


def space(annotations: Any = None, **spec: Any) -> Any:
    pod = make_pod(SPACE_POD if annotations is None else annotations)
    pod["spec"] |= spec
    return pod


def affine(*terms: Any) -> Any:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def requiring(*requirements: Any) -> Any:
    return affine({"matchExpressions": list(requirements)})


def mutate(pod: Any, *rules: Any, held: bool = False, **fields: Any) -> Result:
    review = read_review(pod, **fields)
    context = Context(review, "*", CREATED_MS)
    if held:
        context.mark_held()
    result = place(*rules or [SPACE]).mutate(review.pod, context)
    return unrecorded(result)


def release(pod: Any, *rules: Any) -> Result:
    return unrecorded(place(*rules).at_release(Pod.of(pod)))


def unrecorded(result: Result) -> Result:
    """Drop the record of applied rules, which has its own tests."""
    edits = tuple(edit for edit in result.edits if getattr(edit, "key", "") != PLACED)
    return Result(result.code, edits, result.reason, result.warnings)


def validate(pod: Any, *rules: Any, **fields: Any) -> Result:
    return call(place(*rules or [SPACE]), "validate", pod, **fields)


def validate_template(
    pod: Any, *rules: Any, kind: str = "Deployment", operation: str = "CREATE"
) -> Result:
    template = {"metadata": {"name": "w"}, "spec": {"template": pod}}
    group = {"group": "apps", "version": "v1", "kind": kind}
    return validate(template, *rules, kind=group, operation=operation)


def only_warning(text: str) -> Result:
    return Result(Code.SUCCESS, (), "", [text])


IN_EDGE = f'"{ROLE} In [edge]"'


def owned(**replaced: Any) -> Any:
    pod = space()
    pod["metadata"]["ownerReferences"] = [DAEMON_OWNER | replaced]
    return pod


LATE = rule(name="late", resolveAtRelease=True, nodeSelector={"zone": "a"})


def gated(**spec: Any) -> Any:
    return space(schedulingGates=[{"name": GATE}], **spec)


def stored(pod: Any, *rules: Any) -> Any:
    args = {"name": "placement", "args": {"rules": list(rules)}}
    profile = {"plugins": {"disabled": [{"name": "delay"}]}, "pluginConfig": [args]}
    pipeline = make_pipeline(f"profiles: [{json.dumps(profile)}]", known=KNOWN)
    edits = pipeline.mutate(read_review(pod), now_ms=0).edits
    return apply_patch(pod, patch(Pod.of(pod), edits))
