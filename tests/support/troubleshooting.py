"""Common mistakes and Holdfast's messages: the rows of docs/how-to/troubleshooting.md.

Each message comes from the product's own code. `tests/tooling/test_troubleshooting.py` checks that
it names the object and the fix.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import yaml
from click import UsageError
from click.testing import CliRunner

from holdfast.webhook.cli import main
from holdfast.webhook.errors import ApiStatusError, HoldfastError, UnreachableError
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.freezes import Freeze
from holdfast.webhook.report import explanation, trace
from holdfast.webhook.report.doctor import diagnosis, installation
from holdfast.webhook.report.doctor.diagnosis import Finding
from holdfast.webhook.report.doctor.installation import Runs
from holdfast.webhook.report.next_steps import PodFacts
from holdfast.webhook.report.obstacles import Template
from holdfast.webhook.report.pod_status import NodeState, PodWithStatus
from holdfast.webhook.report.preview import OfflinePreview
from tests.support.builders import (
    CREATED_MS,
    GATE,
    HOUR,
    MINUTE,
    held,
    make_decider,
    make_pipeline,
    make_pod,
    read_review,
)
from tests.support.kubeconfigs import RIGHT
from tests.support.matching import required_affinity
from tests.support.vm_builders import make_launcher, make_vm

_VM = {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"}
_POD_SPEC = {"containers": [{"name": "main", "image": "busybox"}]}
_DELAYED = {"annotations": {"holdfast.dev/delay": "15s"}}


class Mistake(NamedTuple):
    """A mistake, its message, and what the message must name: the object and the fix.

    The page omits mistakes that are similar to others, and those whose message is enough.
    """

    mistake: str
    answer: Callable[[], str]
    thing: str
    fix: str
    is_on_page: bool = True


# --- manifests ---------------------------------------------------------------------------------


def _annotated(text: str, kind: str = "Pod", **spec: Any) -> Callable[[], str]:
    """Preview an object with these annotations, as YAML, on its pod or template."""

    def produce() -> str:
        annotations = yaml.safe_load(text)
        return _previewed(_object(kind, {}, annotations, spec))

    return produce


def _on_pod(text: str, fix: str) -> Mistake:
    """Make the row of a pod with one annotation, as YAML; the message must name its key."""
    return Mistake(f"`{text}`", _annotated(text), text.partition(": ")[0], fix)


def _object(
    kind: str,
    own_annotations: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: Mapping[str, Any],
) -> dict[str, Any]:
    group = {"Job": "batch/v1", "CronJob": "batch/v1", "Rollout": "argoproj.io/v1alpha1"}
    metadata = {"name": "web", "annotations": annotations}
    if kind == "Pod":
        spec = {**_POD_SPEC, **spec}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
    template = {"template": {"metadata": {"annotations": annotations}, "spec": _POD_SPEC}}
    workload_spec: dict[str, Any] = {**template, **spec}
    if kind == "CronJob":
        workload_spec = {"jobTemplate": {"spec": template}, **spec}
    return {
        "apiVersion": group.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": {"name": "web", "annotations": dict(own_annotations)},
        "spec": workload_spec,
    }


def _previewed(document: Mapping[str, Any]) -> str:
    (result,) = OfflinePreview(make_pipeline(), "shop", CREATED_MS).preview(document)
    return [*result.refusals, *result.warnings][0]


def _misplaced() -> str:
    return _previewed(_object("Deployment", {"holdfast.dev/delay": "15s"}, {}, {}))


def _reviewed(document: Any, old: Any = None, **request: Any) -> str:
    if old is not None:
        request |= {"old": old, "operation": "UPDATE"}
    verdict = make_pipeline().validate(read_review(document, **request), now_ms=CREATED_MS)
    return verdict.message or verdict.warnings[0]


def _added_later() -> str:
    return _reviewed(make_pod({"holdfast.dev/delay": "15s"}), old=make_pod(node="node-1"))


def _sticky_template() -> str:
    vm = make_vm({})
    vm["spec"]["template"]["metadata"] = {"annotations": {"holdfast.dev/sticky": "true"}}
    return _reviewed(vm, kind=_VM)


MANIFESTS: Sequence[Mistake] = (
    _on_pod("holdfast.dev/delay: soon", "use whole seconds"),
    _on_pod("holdfast.dev/delay: 1d", "use whole seconds"),
    Mistake(
        "`holdfast.dev/delay: 15` (a number)",
        _annotated("holdfast.dev/delay: 15"),
        "annotation values",
        "must be strings",
    ),
    _on_pod("holdfast.dev/delay: 200h", "shorten the hold"),
    _on_pod("holdfast.dev/delai: 15s", "did you mean holdfast.dev/delay?"),
    Mistake(
        "`holdfast.dev/delay` and `delay` with different values",
        _annotated("{holdfast.dev/delay: 15s, delay: 20s}"),
        "holdfast.dev/delay",
        "remove one of them",
    ),
    Mistake(
        "`holdfast.dev/delay: 15s` in the metadata of a Deployment",
        _misplaced,
        "annotation holdfast.dev/delay",
        "move it to spec.template.metadata.annotations",
    ),
    Mistake(
        "`holdfast.dev/delay: 15s` in the metadata of a CronJob's `jobTemplate`",
        _annotated("{}", "CronJob", jobTemplate={"metadata": _DELAYED}),
        "spec.jobTemplate.metadata: annotation holdfast.dev/delay",
        "move it to spec.jobTemplate.spec.template.metadata.annotations",
        is_on_page=False,
    ),
    _on_pod("holdfast.io/delay: 15s", "did you mean holdfast.dev/delay?"),
    Mistake(
        "a label `holdfast.dev/delay: 15s`",
        lambda: _reviewed(make_pod({}, labels=_DELAYED["annotations"])),
        'label "holdfast.dev/delay"',
        "set annotation holdfast.dev/delay instead",
    ),
    Mistake(
        "`holdfast.dev/sticky` in the template of a VM",
        _sticky_template,
        "annotation holdfast.dev/sticky",
        "move it to the VirtualMachine's metadata.annotations",
    ),
    Mistake(
        "`kubectl annotate pod web holdfast.dev/delay=15s`, while it runs",
        _added_later,
        "annotation holdfast.dev/delay",
        "set it in the template",
    ),
    _on_pod("holdfast.dev/not-before: tomorrow", "use an RFC 3339 time"),
    Mistake(
        "`holdfast.dev/not-before` in the past",
        _annotated('holdfast.dev/not-before: "2026-02-28T18:00:00Z"'),
        "annotation holdfast.dev/not-before",
        "use a later time",
    ),
    Mistake(
        "`holdfast.dev/not-before` next year",
        _annotated('holdfast.dev/not-before: "2027-03-01T12:00:00Z"'),
        "annotation holdfast.dev/not-before",
        "use an earlier time",
    ),
    Mistake(
        "`holdfast.dev/delay-from: revision`",
        _annotated("{delay: 15s, holdfast.dev/delay-from: revision}"),
        "annotation holdfast.dev/delay-from",
        "use pod or owner",
        is_on_page=False,
    ),
    _on_pod("holdfast.dev/window: nights", "use"),
    _on_pod("holdfast.dev/window: Mon 9:00-10:00 Berlin", "use"),
    _on_pod("holdfast.dev/pace: slow", "use"),
    _on_pod("holdfast.dev/window: 22:00-06:00 Mon-Fri", 'use "Mon-Fri 22:00-06:00"'),
    _on_pod("holdfast.dev/after: migrate", "use"),
    _on_pod("holdfast.dev/after: node/a", "use"),
    Mistake(
        "`holdfast.dev/after: job/migrate:complete` in a template",
        _annotated("holdfast.dev/after: job/migrate:complete", "Deployment"),
        "annotation holdfast.dev/after",
        "did you mean Complete?",
    ),
    Mistake(
        "a delay on a pod with `spec.nodeName`",
        _annotated("delay: 15s", nodeName="node-1"),
        "spec.nodeName",
        "use a nodeSelector instead",
    ),
)

WORKLOADS: Sequence[Mistake] = (
    Mistake(
        "a Deployment whose `progressDeadlineSeconds` is shorter than the delay",
        _annotated("delay: 15m", "Deployment", progressDeadlineSeconds=600),
        "spec.progressDeadlineSeconds",
        "increase it",
    ),
    Mistake(
        "a Job whose `activeDeadlineSeconds` is shorter than the delay",
        _annotated("delay: 60s", "Job", activeDeadlineSeconds=30),
        "activeDeadlineSeconds",
        "increase it",
    ),
    Mistake(
        "a StatefulSet whose pods start one after another, each with a delay",
        _annotated("delay: 60s", "StatefulSet", replicas=3),
        "3 pods start one at a time",
        "set spec.podManagementPolicy: Parallel",
    ),
    Mistake(
        "a delay with `strategy: Recreate`",
        _annotated("delay: 60s", "Deployment", strategy={"type": "Recreate"}),
        "spec.strategy",
        "set spec.strategy.type: RollingUpdate",
    ),
    Mistake(
        "a CronJob that starts more often than its delay",
        _annotated("delay: 10m", "CronJob", schedule="*/5 * * * *", concurrencyPolicy="Replace"),
        "spec.schedule",
        "shorten the hold",
    ),
    Mistake(
        "a placement rule that matches a DaemonSet",
        _annotated("type: space", "DaemonSet"),
        "DaemonSet controller",
        "set node affinity in its template",
    ),
    Mistake(
        "a placement rule that contradicts the pod's nodeSelector",
        _annotated("type: space", nodeSelector={"kubernetes.io/role": "core"}),
        "rule space",
        "contradicts nodeSelector",
    ),
    Mistake(
        "a delay in an Argo Rollout",
        _annotated("delay: 15s", "Rollout"),
        "Rollout",
        "only its pods",
    ),
)

# --- commands ----------------------------------------------------------------------------------


def _command(*arguments: str, **files: str) -> Callable[[], str]:
    """Run a command in a folder with these files, and return the last line that it prints."""

    def produce() -> str:
        with TemporaryDirectory() as folder:
            for name, text in files.items():
                Path(folder, f"{name}.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
            argv = [argument.replace("@", f"{folder}/") for argument in arguments]
            result = CliRunner().invoke(main.cli, argv)
            error = result.exception
            text = main.with_advice(error) if isinstance(error, HoldfastError) else result.output
            return text.strip().splitlines()[-1].replace(f"{folder}/", "")

    return produce


def _connected(user: Mapping[str, Any]) -> Callable[[], str]:
    def produce() -> str:
        with TemporaryDirectory() as folder:
            file = Path(folder, "config")
            file.write_text(yaml.safe_dump({**RIGHT, "users": [{"name": "u", "user": user}]}))
            try:
                Cluster.connect(file)
            except (HoldfastError, UsageError) as exc:
                return str(exc).replace(f"{folder}/", "")
        raise AssertionError("nothing was raised")

    return produce


def _missing_kubeconfig() -> str:
    try:
        Cluster.connect(Path("missing.yaml"))
    except HoldfastError as exc:
        return str(exc)
    raise AssertionError("nothing was raised")


def _plugin(command: str, *arguments: str) -> Callable[[], str]:
    version = "client.authentication.k8s.io/v1"
    program = {"apiVersion": version, "command": command, "args": [*arguments]}
    return _connected({"exec": program})


_FORBIDDEN = 'HTTP 403: pods is forbidden: User "jane" cannot list resource "pods" in API group ""'
_POD = (
    "kind: Pod\napiVersion: v1\nmetadata: {{name: {}, annotations: {{holdfast.dev/after: {}}}}}\n"
)
_WAITING = f"{_POD.format('a', 'pod/b')}---\n{_POD.format('b', 'pod/a')}"

COMMANDS: Sequence[Mistake] = (
    Mistake(
        "`holdfast preview` on a ConfigMap",
        _command("preview", "-f", "@web.yaml", web="kind: ConfigMap"),
        "ConfigMap",
        "No pods and no pod templates found",
    ),
    Mistake(
        "`holdfast preview` on pods that wait for each other",
        _command("preview", "-f", "@web.yaml", web=_WAITING),
        "pod/a > pod/b > pod/a",
        "remove one from annotation holdfast.dev/after",
    ),
    Mistake(
        "`holdfast preview --dry-run=server` with a configuration file",
        _command("preview", "-f", "@web.yaml", "--dry-run=server", "--config", "@holdfast.yaml"),
        "--config cannot be combined",
        "installed configuration",
        is_on_page=False,
    ),
    Mistake(
        "`holdfast freeze -A`",
        _command("freeze", "-A", "--reason", "incident 42"),
        "-A is not supported",
        "use --all",
        is_on_page=False,
    ),
    Mistake(
        "a kubeconfig that does not exist", _missing_kubeconfig, "missing.yaml", "--kubeconfig"
    ),
    Mistake(
        "a credential plugin that is not installed",
        _plugin("no-such-login"),
        "credential plugin no-such-login",
        "install it",
    ),
    Mistake(
        "no permission",
        lambda: main.with_advice(ApiStatusError(_FORBIDDEN, status=403)),
        'User "jane"',
        "ask an admin",
    ),
    Mistake(
        "a session that has expired",
        lambda: main.with_advice(ApiStatusError("HTTP 401: Unauthorized", status=401)),
        "HTTP 401",
        "log in again",
    ),
    Mistake(
        "a cluster that does not run",
        lambda: main.with_advice(
            UnreachableError("https://127.0.0.1:6443 does not answer: refused")
        ),
        "https://127.0.0.1:6443",
        "check that the cluster is running",
    ),
)

# --- pods that do not start --------------------------------------------------------------------

_DECIDER = make_decider()


def _explained(
    source: dict[str, Any], section: str = "What to do", line: int = 0, **given: Any
) -> Callable[[], str]:
    """Return the line of `holdfast explain` that is about the mistake."""

    def produce() -> str:
        now_ms = given.get("now_ms", CREATED_MS + MINUTE)
        status = {"phase": "Pending", **given.get("status", {})}
        pod = msgspec.convert({**source, "status": status}, PodWithStatus)
        mutation = trace.mutate(_DECIDER.profiles, read_review(source), now_ms=now_ms)
        of_pod = {key: value for key, value in given.items() if key not in {"now_ms", "status"}}
        facts = PodFacts(pod, now_ms, mutation, **of_pod)
        lines_by_title = {part.title: part.lines for part in explanation.explain(facts, _DECIDER)}
        return lines_by_title.get(section, next(iter(lines_by_title.values())))[line]

    return produce


def _required(pod: dict[str, Any]) -> dict[str, Any]:
    pod["spec"]["nodeSelector"] = {"kubernetes.io/role": "core"}
    edge = {"key": "kubernetes.io/role", "operator": "In", "values": ["edge"]}
    pod["spec"]["affinity"] = required_affinity({"matchExpressions": [edge]})
    return pod


def _deleted(pod: dict[str, Any]) -> dict[str, Any]:
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    return pod


_HINTED = {"delay": "1h", "holdfast.dev/held": "delay=1h"}
_STARTED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T12:00:01Z"}
_UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

PODS: Sequence[Mistake] = (
    Mistake(
        "the pod is held, and should start now",
        _explained(held({"delay": "1h"})),
        "web-0 -n default",
        "holdfast release",
    ),
    Mistake(
        "the pod is overdue",
        _explained(held({"delay": "1s"}), now_ms=CREATED_MS + HOUR),
        "no controller releases it",
        "run holdfast doctor",
    ),
    Mistake(
        "the pod waits for an approval",
        _explained(held({"holdfast.dev/approval": "costs money"}, gates=["holdfast.dev/approval"])),
        "approval",
        "holdfast approve web-0",
    ),
    Mistake(
        "the namespace is frozen",
        _explained(held({"delay": "1s"}), freeze=Freeze("default", "incident 42")),
        "freeze",
        "holdfast thaw -n default",
    ),
    Mistake(
        "another component's gate is left",
        _explained(held({}, gates=["example.com/quota"])),
        "example.com/quota",
        "must remove it",
    ),
    Mistake(
        "somebody else removed the gate",
        _explained(make_pod(_HINTED, node="node-1"), "Gates", status={"conditions": [_STARTED]}),
        GATE,
        "the guard would prevent it",
    ),
    Mistake(
        "the delay in the StatefulSet's template was changed, and the pod keeps the old one",
        _explained(
            held({"delay": "1h"}), line=1, template=Template("StatefulSet", "web", {"delay": "5s"})
        ),
        "template of StatefulSet web",
        "kubectl delete pod web-0",
    ),
    Mistake(
        "the pod's nodeSelector contradicts a placement rule",
        _explained(
            _required(make_pod({"type": "space", "holdfast.dev/placed": "space@82541989"})), "Nodes"
        ),
        "placement rule space",
        "no node can meet",
    ),
    Mistake(
        "the scheduler finds no node",
        _explained(make_pod({}), status={"conditions": [_UNSCHEDULABLE]}),
        "the scheduler",
        "fix",
    ),
    Mistake(
        "the VM's recorded node is cordoned",
        _explained(
            make_launcher(),
            "Nodes",
            nodes=[NodeState("node-1", "it is cordoned; run kubectl uncordon node-1")],
        ),
        "node-1",
        "run kubectl uncordon node-1",
    ),
    Mistake(
        "the pod is on a node that is not ready",
        _explained(
            make_pod({}, node="node-1"),
            nodes=[NodeState("node-1", "it is not ready (NodeStatusUnknown)")],
        ),
        "the node",
        "kubectl describe node node-1",
    ),
    Mistake(
        "the pod of a deleted VM stays",
        _explained(_deleted(make_launcher(finalizers=["holdfast.dev/sticky"], node="node-1"))),
        "finalizer",
        "run holdfast doctor",
    ),
)

# --- the installation --------------------------------------------------------------------------


def _said(finding: Finding) -> str:
    return f"{finding.about}: {finding.text}: {finding.cure}"


def _found(make: Callable[[], Finding]) -> Callable[[], str]:
    return lambda: _said(make())


_URL = "127.0.0.1:8443"
INSTALLATION: Sequence[Mistake] = (
    Mistake(
        "no webhook is registered",
        _found(lambda: diagnosis.webhooks([])),
        "no mutating and no validating webhook",
        "start the controller",
    ),
    Mistake(
        "no admission server runs",
        _found(lambda: diagnosis.server("Service holdfast-system/holdfast-webhook", 0)),
        "Service holdfast-system/holdfast-webhook",
        "check the pods of Deployment holdfast-webhook",
    ),
    Mistake(
        "`holdfast dev` was killed, and its webhooks are left",
        _found(lambda: diagnosis.server(_URL, 0, installation.start(Runs.DEV, ""))),
        _URL,
        "kubectl delete",
    ),
    Mistake(
        "the certificate was not renewed",
        _found(
            lambda: next(
                diagnosis.served(
                    "Service holdfast-system/holdfast-webhook", None, CREATED_MS, trusted=True
                ),
            )
        ),
        "certificate of Service holdfast-system/holdfast-webhook",
        "check its log",
    ),
    Mistake(
        "a GitOps tool has reset the caBundle",
        _found(lambda: diagnosis.ca("pods.holdfast.dev (mutating)", 1, None, CREATED_MS)),
        "webhook pods.holdfast.dev",
        "the leading controller writes the caBundle",
    ),
    Mistake(
        "the guard is not installed",
        _found(lambda: diagnosis.guard("holdfast-controller", restricts=None, refuses=True)),
        "guard",
        "kubectl apply -k manifests/rbac",
    ),
    Mistake(
        "the controller lacks the role for a kind in `holdfast.dev/after`",
        _found(
            lambda: installation.may_not_follow(
                "system:serviceaccount:holdfast-system:holdfast-controller",
                "list",
                "jobs.batch",
                "pods that wait for a job stay held",
            )
        ),
        "may not list jobs.batch",
        "holdfast rbac",
    ),
    Mistake(
        "`helm uninstall` has begun, or was interrupted",
        _found(
            lambda: next(
                installation.incomplete("holdfast-system", ["holdfast-webhook"], registered=False)
            )
        ),
        "incomplete in namespace holdfast-system",
        "holdfast uninstall",
    ),
    Mistake(
        "the clocks differ",
        _found(lambda: diagnosis.clock(90.0)),
        "this machine's clock",
        "synchronize the clocks with NTP",
        is_on_page=False,
    ),
    Mistake(
        "KubeVirt's account has another name",
        _found(lambda: next(installation.virt_controllers([("cnv", False)]))),
        "account cnv",
        "set the argument account",
    ),
    Mistake(
        "a deleted namespace stays, because the controller is gone",
        _found(lambda: installation.kept("shop", ["db-1"], terminating=True)),
        "terminating namespace shop",
        "kubectl -n shop patch pod db-1",
    ),
    Mistake(
        "the configuration is nearly too large",
        _found(lambda: next(installation.size(99_000, 100_000, "characters of a match condition"))),
        "configuration",
        "use fewer placement rules",
    ),
)

MISTAKES: Mapping[str, Sequence[Mistake]] = MappingProxyType(
    {
        "Annotations": MANIFESTS,
        "Workloads": WORKLOADS,
        "Commands": COMMANDS,
        "Pods that do not start": PODS,
        "Installation": INSTALLATION,
    }
)
