"""Reviews with many repeated or long elements, which cost the most to answer."""

import json
from collections.abc import Callable
from typing import Any

from tests.support.builders import make_pod, make_review
from tests.support.matching import required_affinity

Make = Callable[[int], Any]


def annotated(**annotations: str) -> Any:
    return make_pod({"delay": "15", "type": "space", **annotations}, labels={"type": "x"})


def specified(**spec: Any) -> Any:
    pod = annotated()
    pod["spec"] |= spec
    return pod


def invalid(**spec: Any) -> Any:
    """Make a pod whose rejection lists all errors, not only that of its delay."""
    pod = annotated(delay="x")
    pod["spec"] |= spec
    return pod


def described(**metadata: Any) -> Any:
    pod = annotated()
    pod["metadata"] |= metadata
    return pod


def affine(*terms: Any) -> Any:
    return specified(affinity=required_affinity(*terms))


def zone(*values: str, operator: str = "In") -> Any:
    return {"key": "zone", "operator": operator, "values": [*values]}


def owner(number: int) -> Any:
    return {"apiVersion": "v1", "kind": "X", "name": f"n{number}", "uid": "u"}


def job_set(templates: int, **metadata: Any) -> Any:
    """Make a review of a JobSet with this many templates that plugins handle."""
    job = {"template": {"spec": {"template": annotated()}}}
    jobs = {"metadata": {"name": "x"} | metadata, "spec": {"replicatedJobs": [job] * templates}}
    return make_review(jobs, kind={"group": "jobset.x-k8s.io", "version": "v1", "kind": "JobSet"})


SHAPES: dict[str, Make] = {
    "annotations": lambda n: annotated(**{f"k{i}": "v" for i in range(n)}),
    "unknown keys": lambda n: annotated(**{f"holdfast.dev/k{i}": "v" for i in range(n)}),
    "labels": lambda n: described(labels={f"k{i}": "v" for i in range(n)}),
    "a long value of others": lambda n: annotated(other="x" * 100 * n),
    "a long number": lambda n: annotated(delay="9" * 100 * n),
    "a long duration": lambda n: annotated(delay="1h" * 100 * n),
    "a long time": lambda n: annotated(**{"holdfast.dev/not-before": "2" * 100 * n}),
    "a long hint": lambda n: annotated(**{"holdfast.dev/held": "x=1," * 25 * n}),
    "a long window": lambda n: annotated(**{"holdfast.dev/window": "Mon 10:00-11:00," * 6 * n}),
    "a long pace": lambda n: annotated(**{"holdfast.dev/pace": "9" * 100 * n}),
    "a long list of objects": lambda n: annotated(**{"holdfast.dev/after": "job/x," * 16 * n}),
    "a long approval": lambda n: annotated(**{"holdfast.dev/approval": "x" * 100 * n}),
    "a long record": lambda n: annotated(
        **{"holdfast.dev/placed": ",".join(f"x{i}@1" for i in range(n))}
    ),
    "control characters": lambda n: annotated(delay="\x00\u202e" * 100 * n),
    "long names": lambda n: described(name="n" * 100 * n, namespace="n" * 100 * n),
    "finalizers": lambda n: described(finalizers=[f"a.io/b{i}" for i in range(n)]),
    "finalizers of ours": lambda n: described(finalizers=["holdfast.dev/x"] * n),
    "different finalizers of ours": lambda n: described(
        finalizers=[f"holdfast.dev/b{i}" for i in range(n)]
    ),
    "finalizers of ours next to earlier ones": lambda n: make_review(
        described(finalizers=["holdfast.dev/x"] * n),
        operation="UPDATE",
        old=described(finalizers=["a/b"] * 4 * n),
    ),
    "owners": lambda n: described(ownerReferences=[owner(i) for i in range(n)]),
    "gates": lambda n: specified(schedulingGates=[{"name": f"x/y{i}"} for i in range(n)]),
    "tolerations": lambda n: specified(
        tolerations=[{"key": f"k{i}", "operator": "Exists"} for i in range(n)]
    ),
    "empty tolerations": lambda n: specified(tolerations=[{}] * 10 * n),
    "nodeSelector": lambda n: specified(nodeSelector={f"k{i}": "v" for i in range(n)}),
    "terms": lambda n: affine(*({"matchExpressions": [zone(f"v{i}")]} for i in range(n))),
    "equal terms": lambda n: affine(*[{"matchExpressions": [zone("a")]}] * n),
    "empty terms": lambda n: affine(*[{}] * 10 * n),
    "fields without requirements": lambda n: affine(*[{"matchFields": [{}]}] * 10 * n),
    "preferred terms": lambda n: specified(
        affinity={
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]
                * n
            }
        }
    ),
    "expressions": lambda n: affine({"matchExpressions": [zone(f"v{i}") for i in range(n)]}),
    "forbidden": lambda n: affine(
        {"matchExpressions": [zone(f"v{i}", operator="NotIn") for i in range(n)]}
    ),
    "values": lambda n: affine({"matchExpressions": [zone(*(f"v{i}" for i in range(n)))]}),
    "refused, with empty parts": lambda n: invalid(x=[{}] * 10 * n),
    "refused, with short parts": lambda n: invalid(x=[{"": 0}] * 10 * n),
    "deep lists": lambda n: specified(x=nested(n // 10)),
    "containers": lambda n: specified(containers=[{"name": "c", "image": "x"}] * n),
}
WORKLOADS: dict[str, Make] = {
    "templates and labels of their workload": lambda n: job_set(
        n // 16, labels={f"k{i}": "" for i in range(n)}
    ),
    "templates and annotations of their workload": lambda n: job_set(
        n // 16, annotations={f"k{i}": "" for i in range(n)}
    ),
}


def nested(depth: int) -> Any:
    lists: Any = []
    for _ in range(depth):
        lists = [lists]
    return lists


def body_of(shape: str, count: int) -> bytes:
    """Make a review in compact JSON, which has room for the most repeated elements."""
    document = (SHAPES | WORKLOADS)[shape](count)
    review = document if "request" in document else make_review(document)
    return json.dumps(review, separators=(",", ":")).encode()
