"""The messages in docs/reference/errors.md: each is produced by the code that users meet.

`docs.generate` writes the page from this list, and tests/unit/test_docs.py runs each case, so no
message stands there that Holdfast does not say.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import msgspec

from controlplane.compiler import build_failure, require_room
from controlplane.errors import ControlPlaneError, disk_full, from_os_error
from controlplane.ports import port_taken
from controlplane.settings import Settings
from tests.fakes import FakeLookup
from tests.unit import config_cases
from tests.unit.builders import UID, body, make_pipeline, make_pod, read_review
from tests.unit.vm_builders import VM_UID, make_launcher, make_vm, make_vmi
from webhook import (
    app,
    cli,
    config,
    guard,
    holds,
    plugins,
    preview,
    reading,
    vm_guard,
    vms,
    yaml_text,
)
from webhook.cluster import Api, Cluster
from webhook.commands import explain, options, release, sticky, uninstall
from webhook.commands import list as list_command
from webhook.commands import preview as preview_command
from webhook.commands.check_config import check_config
from webhook.commands.controller import controller
from webhook.commands.serve import serve
from webhook.errors import ApiStatusError, HoldfastError, UnreachableError
from webhook.framework import Handle
from webhook.gunicorn_conf import listen
from webhook.inspection import Node
from webhook.leader import own_namespace
from webhook.metrics import ServerMetrics
from webhook.objects import Metadata, Pod
from webhook.profiles import Verdict
from webhook.tls import new_context, server_context

NOW_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
HEAD = "apiVersion: holdfast.dev/v1alpha1\nkind: HoldfastConfiguration\n"


class Case(NamedTuple):
    """A message: how it comes about, why, and what to do where the message does not say it."""

    produce: Callable[[], str]
    cause: str = ""
    cure: str = ""


def _raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except (HoldfastError, ControlPlaneError) as exc:
        return str(exc)
    except click.UsageError as exc:
        return exc.format_message()
    raise AssertionError("nothing was raised")


# --- at admission ------------------------------------------------------------------------------


def _mutated(
    annotations: Mapping[str, str],
    yaml: str = "",
    spec: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> str:
    pod = make_pod(annotations, **fields)
    pod["spec"] |= spec
    verdict = make_pipeline(yaml).mutate(read_review(pod), now_ms=NOW_MS)
    return verdict.message or verdict.warnings[0]


def _validated(annotations: Mapping[str, str], *, now_ms: int = NOW_MS, **pod: Any) -> str:
    review = read_review(make_pod(annotations, **pod))
    verdict = make_pipeline().validate(review, now_ms=now_ms)
    return verdict.message or verdict.warnings[0]


def _crowded(**spec: Any) -> str:
    return _mutated({"delay": "15"}, spec=spec)


def _template(kind: str, group: str, delay: str, node: str = "", **spec: Any) -> str:
    template = {"metadata": {"annotations": {"delay": delay}}, "spec": {"nodeName": node}}
    review = read_review(
        {"metadata": {"name": "web"}, "spec": {"template": template, **spec}},
        kind={"group": group, "version": "v1", "kind": kind},
    )
    verdict = make_pipeline().validate(review, now_ms=NOW_MS)
    return verdict.message or verdict.warnings[0]


def _of_daemon_set() -> str:
    template = {"metadata": {"annotations": {"type": "space"}}, "spec": {}}
    review = read_review(
        {"metadata": {"name": "logs"}, "spec": {"template": template}},
        kind={"group": "apps", "version": "v1", "kind": "DaemonSet"},
    )
    return make_pipeline().validate(review, now_ms=NOW_MS).warnings[0]


def _vm(annotations: Mapping[str, str]) -> str:
    review = read_review(make_vm(annotations), kind=_VM)
    return make_pipeline().validate(review, now_ms=NOW_MS).message


def _clone_sent_to(node: str) -> str:
    copied = {vms.STICKY_NODE: "node-1", vms.STICKY_NODE_UID: "another"}
    new, old = make_vm({**copied, vms.STICKY_NODE: node}), make_vm(copied)
    review = read_review(new, kind=_VM, operation="UPDATE", old=old)
    return make_pipeline().validate(review, now_ms=NOW_MS).message


def _launched(
    annotations: Mapping[str, str],
    *,
    vm_uid: str = VM_UID,
    point: str = "mutate",
    creator: str = vms.CONTROLLER_ACCOUNT,
    pod: Mapping[str, Any] | None = None,
) -> str:
    objects = {
        vms.vmi_path("default", "vm"): make_vmi(),
        vms.vm_path("default", "vm"): make_vm(annotations, uid=vm_uid),
    }
    handle = Handle()
    handle.connect(lookup=FakeLookup(objects))
    review = read_review(pod or make_launcher(), userInfo={"username": creator})
    verdict: Verdict = getattr(make_pipeline(handle=handle), point)(review, now_ms=NOW_MS)
    return verdict.message


def _delay(value: str) -> Callable[[], str]:
    return lambda: _mutated({holds.DELAY_KEYS[0]: value})


def _not_before(value: str) -> Callable[[], str]:
    return lambda: _mutated({holds.NOT_BEFORE: value})


_VM = {"group": "kubevirt.io", "version": "v1", "kind": vms.VM}
_IGNORE = (
    "profiles: [{plugins: {enabled: [{name: delay}]},"
    " pluginConfig: [{name: delay, args: {onInvalid: ignore}}]}]"
)

REFUSALS: Sequence[Case] = (
    Case(
        _delay("soon"),
        "A delay is neither whole seconds nor a duration.",
        "see the [table of values](annotations.md#delays).",
    ),
    Case(_delay("-15"), "A pod cannot be due before it was created.", "write `0`, or nothing."),
    Case(
        _delay("9223372036854775808"),
        "More than 2^63-1 seconds.",
        "write a shorter delay; `maxDelay` is far below that anyway.",
    ),
    Case(_delay("2562048h"), "More than 2^63-1 nanoseconds."),
    Case(
        _not_before("tomorrow"),
        "A time is not RFC 3339, or has no offset.",
        "see the [table of times](annotations.md#times).",
    ),
    Case(
        _not_before("2026-12-24T18:00:00+24:00"),
        "An offset has 23 hours and 59 minutes at most.",
        "correct the offset.",
    ),
    Case(
        _not_before("9999-12-31T23:59:59-00:01"),
        "In UTC the time lies outside the calendar.",
        "choose another time.",
    ),
    Case(
        lambda: _mutated({"holdfast.dev/delay": "15", "delay": "20"}),
        "Two keys of a delay have different values.",
    ),
    Case(
        lambda: _mutated({"delay": "160h", holds.JITTER: "12h"}),
        "Delay and jitter together are longer than `maxDelay`. A pod that comes with the gate, and "
        "an update by which a pod that has it asks for more than before, are refused for this with "
        "`onInvalid: ignore` too: it would be held all the same.",
        "shorten them, or have `maxDelay` raised in the [configuration](configuration.md).",
    ),
    Case(
        _not_before("2027-01-01T00:00:00Z"),
        "At the creation of a pod the time is further away than `maxDelay`.",
        "choose an earlier time, or have `maxDelay` raised.",
    ),
    Case(
        lambda: _template("Deployment", "apps", "soon"),
        "The same, in a workload's template: the path of the field comes first.",
        "correct the value in the template.",
    ),
    Case(
        lambda: _validated({"delay": "15"}),
        "Another mutating webhook took the gate off, or added the annotation too late to be seen.",
        "let that webhook leave `spec.schedulingGates` alone, or set `reinvocationPolicy`.",
    ),
    Case(
        lambda: _validated({holds.NOT_BEFORE: "2026-03-01T12:30:00Z"}, now_ms=NOW_MS + 3_600_000),
        "The clock of the admission server's machine is ahead, so that it put no gate on a pod "
        "which is due later. The pod is refused rather than let go early.",
    ),
    Case(
        lambda: _crowded(tolerations=[{}] * 1_001),
        "A pod, or a template, has more of something than anybody needs: at most 1,000 "
        "tolerations, 1,000 required and 1,000 preferred terms of node affinity, and in these "
        "10,000 requirements with 50,000 values. A pod that was there before can be updated.",
    ),
    Case(
        lambda: _validated({}, finalizers=["holdfast.dev/sticky"]),
        "Somebody else adds a finalizer under `holdfast.dev/`.",
    ),
)

_EDGE = {"type": "space"}
_CORE = {"nodeSelector": {"kubernetes.io/role": "core"}}
_STRICT = """
profiles:
- pluginConfig:
  - name: placement
    args:
      rules:
      - name: space
        when: {annotation: type, equals: space}
        require: [{key: kubernetes.io/role, operator: In, values: [edge]}]
        onConflict: refuse
"""

PLACEMENT: Sequence[Case] = (
    Case(
        lambda: _mutated(_EDGE, _STRICT, spec=_CORE),
        "A rule with `onConflict: refuse`, and a pod that requires the opposite.",
        "take one of the two out; `holdfast preview` shows what a rule does.",
    ),
    Case(
        lambda: _mutated(_EDGE, spec=_CORE),
        "The same without `onConflict: refuse`, as a warning: the pod stays Pending.",
    ),
    Case(
        lambda: _validated(_EDGE),
        "A refusal: the pod came without what its rule requires.",
        "let the other webhook leave `spec.affinity` alone, or set `reinvocationPolicy`.",
    ),
    Case(
        lambda: _validated({**_EDGE, "holdfast.dev/placed": "space@00000000"}),
        "A warning, while a changed configuration is rolled out: another replica placed the pod.",
        "none is needed; pods that are created afterwards follow the new rule.",
    ),
    Case(
        lambda: _mutated(_EDGE, node="node-1"),
        "A warning: a pod that has its node already can be sent nowhere else.",
        "leave `spec.nodeName` out, or the mark.",
    ),
    Case(
        _of_daemon_set,
        "A warning: a DaemonSet has a pod on each node, and ties each to its own.",
        "give the DaemonSet's template a node affinity of its own, and no mark.",
    ),
)


def _pinned_twice() -> str:
    """Validate a pod that was pinned, and once more when the VM's record had changed."""
    pins = [
        {"key": "metadata.name", "operator": "In", "values": [node]}
        for node in ("node-1", "node-2")
    ]
    required = {"nodeSelectorTerms": [{"matchFields": pins}]}
    pod = make_launcher(finalizers=[vms.STICKY])
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    return _launched({vms.STICKY_NODE: "node-2"}, point="validate", pod=pod)


def _looked_up_in_vain() -> str:
    lookup = FakeLookup()
    lookup.failures.append(
        ApiStatusError(
            'HTTP 403: virtualmachineinstances.kubevirt.io "db" is forbidden: User '
            '"system:serviceaccount:holdfast-system:holdfast-webhook" cannot get resource '
            '"virtualmachineinstances" in API group "kubevirt.io" in the namespace "shop"',
            status=403,
        )
    )
    handle = Handle()
    handle.connect(lookup=lookup)
    review = body(make_launcher(), userInfo={"username": vms.CONTROLLER_ACCOUNT})
    client = app.create_app(make_pipeline(handle=handle), ServerMetrics()).test_client()
    answer = client.post("/mutate", data=review, content_type="application/json")
    return str(answer.get_json()["response"]["status"]["message"])


STICKY: Sequence[Case] = (
    Case(
        _looked_up_in_vain,
        "The VM of a pod, or its VMI, could not be read, so that nobody knows where the pod "
        "belongs. What the API server says, or that it does not answer, stands behind the colon.",
        "KubeVirt tries again; where it does not go away by itself, give the webhook the rights "
        "of `manifests/kubevirt`, or mend the API server.",
    ),
    Case(
        lambda: _vm({vms.STICKY: "yes"}),
        "The annotation of a VM knows two values.",
    ),
    Case(
        lambda: _vm({vms.STICKY_NODE: "Node 1"}),
        "The record on a VM cannot be a node's name.",
    ),
    Case(
        lambda: _clone_sent_to("node-2"),
        "The VM is a clone, or was restored from a backup, and has its origin's UID beside the "
        "record: its next start would ignore the node.",
        "`kubectl annotate vm db holdfast.dev/sticky-node=node-2 holdfast.dev/sticky-node-uid- "
        "--overwrite`, or `holdfast sticky set db node-2`.",
    ),
    Case(
        lambda: _launched({vms.STICKY_NODE: "Node 1"}),
        "The same, found when KubeVirt creates the VM's pod: the VM was written while Holdfast "
        "was down. The pod is refused rather than let go anywhere.",
    ),
    Case(
        lambda: _launched({}, creator="system:serviceaccount:openshift-cnv:kubevirt-controller"),
        "KubeVirt is installed in another namespace than `kubevirt`, and the configuration does "
        "not say so.",
        "set `account` in the arguments of the plugin `sticky`; where that account is not "
        "KubeVirt's, somebody uses its name.",
    ),
    Case(
        lambda: _launched({}, vm_uid="another"),
        "The VM, or its VMI, was deleted while KubeVirt was creating a pod for it.",
        "none is needed: there is nothing to start any more, or KubeVirt tries again.",
    ),
    Case(
        lambda: _launched({vms.STICKY_NODE: "node-1"}, point="validate"),
        "Another mutating webhook changed a launcher pod behind Holdfast, or the VM's record "
        "changed at that very moment.",
        "where it does not go away by itself, let that webhook leave finalizers and node affinity "
        "alone.",
    ),
    Case(
        _pinned_twice,
        "The VM's record changed while its pod was created, and the pod was given both nodes; or "
        "the VM requires a node by its own affinity, and its record names another. Such a pod "
        "would stay Pending.",
        "where it does not go away by itself, take the node out of the VM's own affinity, or "
        "correct the record.",
    ),
)

WARNINGS: Sequence[Case] = (
    Case(
        lambda: _mutated({"delay": "soon"}, _IGNORE),
        "With `onInvalid: ignore` a value that cannot be followed is passed over.",
        "correct the value.",
    ),
    Case(
        lambda: _mutated({"delay": "15"}, node="node-1"),
        "A pod that has its node already cannot be gated.",
        "leave `spec.nodeName` out, or the annotation.",
    ),
    Case(
        lambda: _template("Deployment", "apps", "15m", progressDeadlineSeconds=600),
        "The Deployment will be reported as not progressing while its pods are held.",
        "raise `progressDeadlineSeconds` above the delay.",
    ),
    Case(
        lambda: _template("Deployment", "apps", "15m", node="node-1"),
        "A template that names a node: its pods come bound, and cannot be gated.",
        "leave `nodeName` out, or the annotation.",
    ),
    Case(
        lambda: _template("Job", "batch", "60", activeDeadlineSeconds=30),
        "The Job will end before its pods are released.",
        "raise `activeDeadlineSeconds` above the delay.",
    ),
    Case(
        lambda: _template("StatefulSet", "apps", "60", replicas=3),
        "With `OrderedReady` the delays add up.",
        "set `podManagementPolicy: Parallel`, or accept it.",
    ),
)


# --- the guard ---------------------------------------------------------------------------------


def _policy(name: str, index: int = 0) -> str:
    made = guard.policies(make_pipeline())
    (policy,) = (
        one for one in made if one["metadata"]["name"] == name and "validations" in one["spec"]
    )
    return str(policy["spec"]["validations"][index]["message"])


GUARD: Sequence[Case] = (
    Case(
        lambda: _policy(guard.HOLD),
        "Somebody without the verb took our gate off, or changed what decides. The API server "
        "usually shows a [longer form](../how-to/guard.md#what-the-refusals-look-like).",
        "bind the ClusterRole `holdfast-releaser`.",
    ),
    Case(
        lambda: _policy(guard.CONTROLLER_PODS, 3),
        "The controller's account was used for something that the controller never does. There "
        "is such a line for each field that it may not change.",
        "find out who uses that account.",
    ),
    Case(
        lambda: _policy(vm_guard.CONTROLLER_VMS, 1),
        "The controller's account was used to change something else of a VM. There is such a line "
        "for each field that it may not change.",
        "find out who uses that account.",
    ),
    Case(
        lambda: _policy(guard.CONTROLLER_WEBHOOKS, 1),
        "The controller's account was used to register another webhook.",
        "find out who uses that account.",
    ),
)

# --- answers of the admission server that are no reviews ---------------------------------------


def _answered(content: bytes, content_type: str, coding: str = "identity") -> str:
    client = app.create_app(make_pipeline(), ServerMetrics()).test_client()
    headers = {"Content-Encoding": coding}
    answer = client.post("/mutate", data=content, content_type=content_type, headers=headers)
    return f"HTTP {answer.status_code}: {answer.text.strip()}"


def _deployment() -> bytes:
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    return body({"metadata": {}, "spec": {"template": {}}}, kind=kind)


ANSWERS: Sequence[Case] = (
    Case(
        lambda: _answered(b"{}", "text/plain"),
        "Something other than an API server asked.",
        "send `Content-Type: application/json`.",
    ),
    Case(
        lambda: _answered(b"{}", "application/json", "gzip"),
        "The body is packed, which no API server does. It is never unpacked.",
        "send it as it is.",
    ),
    Case(
        lambda: _answered(b"{}", "application/json"),
        "The body is not what an API server sends.",
        "register the webhook with `admissionReviewVersions: [v1]`.",
    ),
    Case(
        lambda: _answered(_deployment(), "application/json"),
        "`/mutate` is registered for workloads; it is for pods alone.",
        "register as `holdfast dev` and the controller do.",
    ),
)

# --- configuration -----------------------------------------------------------------------------


def _configured(yaml: str) -> Callable[[], str]:
    def build() -> None:
        config.build_pipeline(
            config.parse(yaml.encode(), "holdfast.yaml"),
            plugins.registry([]),
            source="holdfast.yaml",
            timer=lambda: 0.0,
            observe=lambda **_: None,
        )

    return lambda: _raised(build)


def _delay_args(args: str) -> Callable[[], str]:
    return _configured(f"{HEAD}profiles: [{{pluginConfig: [{{name: delay, args: {args}}}]}}]")


def _placed(at_release: str) -> Callable[[], str]:
    rule = f"{{name: late, when: {{label: a, exists: true}}, resolveAtRelease: true, {at_release}}}"
    args = f"{{rules: [{rule}]}}"
    return _configured(f"{HEAD}profiles: [{{pluginConfig: [{{name: placement, args: {args}}}]}}]")


_HELD_LATE = f"""{HEAD}profiles:
- plugins: {{disabled: [{{name: delay}}], enabled: [{{name: delay}}]}}
  pluginConfig:
  - name: placement
    args: {{rules: [{{name: late, when: {{label: a, exists: true}}, resolveAtRelease: true,
                     require: [{{key: b, operator: Exists}}]}}]}}
"""

CONFIGURATION: Sequence[Case] = (
    Case(
        lambda: _raised(lambda: config.load(Path("holdfast.yaml"))),
        "The file given to `--config` is missing or not readable.",
    ),
    Case(_configured("a: ["), "The file is not YAML."),
    Case(_configured("- a"), "The file is not a mapping."),
    Case(
        _configured("apiVersion: v1\nkind: HoldfastConfiguration"),
        "A file of another kind or version.",
    ),
    Case(
        _delay_args("{maxDelays: 24h}"),
        "A field that does not exist, often a slip of the pen.",
        "correct its name.",
    ),
    Case(_delay_args("{maxDelay: 24}"), "A value of another type.", "write text: `24h`."),
    Case(_delay_args("{maxDelay: 1d}"), "`maxDelay` is no duration.", "write `24h`."),
    Case(_delay_args("{annotations: []}"), "No key is left."),
    Case(
        _delay_args("{annotations: [holdfast.dev/jitter]}"),
        "The key has a meaning of its own.",
    ),
    Case(_delay_args("{annotations: [a b]}"), "Kubernetes takes no such key."),
    Case(_delay_args("{annotations: [a, a]}"), "A key stands there twice."),
    Case(
        _configured(f"{HEAD}profiles: [{{plugins: {{enabled: [{{name: dely}}]}}}}]"),
        "There is no such plugin.",
        "correct its name.",
    ),
    Case(
        _configured(
            f"{HEAD}profiles: [{{plugins: {{enabled: [{{name: delay}}, {{name: delay}}]}}}}]"
        ),
        "A plugin is enabled twice in one profile.",
    ),
    Case(
        lambda: _raised(
            lambda: config.without(
                config.parse(
                    f"{HEAD}profiles: [{{pluginConfig: [{{name: sticky}}]}}]".encode(), "-"
                ),
                ["sticky"],
                plugins.registry([]),
                source="holdfast.yaml",
            )
        ),
        "The installation cannot run a plugin that the file configures.",
    ),
    Case(
        _configured(f"{HEAD}profiles: [{{}}, {{}}]"),
        "Two profiles serve the same `schedulerName`.",
    ),
    Case(_configured(f"{HEAD}profiles: []"), "There is no profile."),
    Case(
        _placed("schedulerName: other"),
        "The scheduler of a pod that is stored cannot be changed.",
    ),
    Case(
        _placed("tolerations: [{operator: Exists}]"),
        "A toleration opens nodes, and policies on `CREATE` do not see what comes at the release.",
    ),
    Case(
        _configured(_HELD_LATE),
        "A rule with `resolveAtRelease` would be applied before it is known that the pod is held. "
        "Plugins of your own run behind the default ones, and so behind placement.",
    ),
)


def _ruled(rule: Mapping[str, Any], *more: Mapping[str, Any]) -> Callable[[], str]:
    args = {"rules": [rule, *more]}
    profile = {"pluginConfig": [{"name": "placement", "args": args}]}
    return _configured(f"{HEAD}profiles: {json.dumps([profile])}")


RULES: Sequence[Case] = tuple(
    {
        case.produce(): case
        for case in [
            Case(_ruled(config_cases.rule(name="a b"))),
            Case(_ruled(config_cases.SPACE, config_cases.SPACE)),
            *(Case(_ruled(config_cases.rule(when=each.values[0]))) for each in config_cases.WHEN),
            *(
                Case(_ruled(config_cases.rule(**each.values[0])))
                for each in [*config_cases.RULES, *config_cases.SHAPES]
                if "resolveAtRelease" not in each.values[0]
            ),
        ]
    }.values()
)
"""The files that the tests have refused; each message says its cure itself."""

# --- start-up ----------------------------------------------------------------------------------


def _taken_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return _raised(lambda: listen("127.0.0.1", port)).replace(str(port), "8443")


def _started(command: click.Command, *arguments: str) -> Callable[[], str]:
    return lambda: _raised(lambda: command.main(list(arguments), standalone_mode=False))


def _kubeconfig(content: bytes) -> Callable[[], str]:
    def produce() -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "config")
            path.write_bytes(content)
            return _raised(lambda: Cluster.connect(path)).replace(f"{folder}/", "")

    return produce


START: Sequence[Case] = (
    Case(
        lambda: _raised(lambda: Cluster.connect(Path("nowhere"))),
        "No kubeconfig was found, or it cannot be used.",
    ),
    Case(
        _kubeconfig(b"a: &a x\nb: *a"),
        "A few lines of aliases can stand for gigabytes.",
    ),
    Case(
        _kubeconfig(b"users: [{user: {token: abc}}]"),
        "An entry of `clusters`, `contexts` or `users` has no name.",
    ),
    Case(
        _kubeconfig(b"#" * (yaml_text.SIZE_LIMIT + 1)),
        "The file has more than any kubeconfig.",
    ),
    Case(
        lambda: _raised(own_namespace),
        "A controller that stands for election runs outside of a pod.",
    ),
    Case(
        _started(controller, "--certificates", "self"),
        "Certificates and webhook configurations have one writer.",
    ),
    Case(
        _started(serve, "--cert", "tls.crt", "--key", "tls.key", "--client-ca", "ca.crt"),
        "With a clients' CA, only clients with a certificate are served on the main port.",
    ),
    Case(
        lambda: _raised(lambda: new_context(Path("ca.crt"))),
        "The file given to `--client-ca` is missing, or has no certificate.",
    ),
    Case(
        _taken_port,
        "Another process listens there.",
        "stop it, or choose another port with `--port` (of the controller: `--health-port`).",
    ),
    Case(
        lambda: _raised(lambda: server_context(Path("tls.crt"), Path("tls.key"))),
        "The certificate or its key is missing, not PEM, encrypted, or they do not belong "
        "together. The server does not start: it never serves plaintext.",
    ),
)

# --- commands for people -----------------------------------------------------------------------


class _Alike:
    """An API that answers everything alike (`webhook.cluster.Api`)."""

    def __init__(self, answer: object = None, *, status: int = 200, reason: str = "") -> None:
        self._answer, self._status, self._reason = answer, status, reason

    def request(self, *_: object, **__: object) -> bytes:
        if self._status >= 400:
            text = f"HTTP {self._status}"
            raise ApiStatusError(text, status=self._status, reason=self._reason)
        return msgspec.json.encode(self._answer)

    def lines(self, *_: object, **__: object) -> Iterator[bytes]:
        yield from ()


def _forbidden() -> str:
    text = 'HTTP 403: pods is forbidden: User "jane" cannot list resource "pods" in API group ""'
    return cli.told(ApiStatusError(text, status=403))


def _not_yaml() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "web.yaml")
        path.write_text("a: [")
        return _raised(lambda: preview_command._documents(str(path))).replace(f"{folder}/", "")


class _Unyielding(_Alike):
    """An API with objects that it lets nobody change."""

    def __init__(self, *objects: object) -> None:
        super().__init__({"items": objects})

    def request(self, *asked: object, **__: object) -> bytes:
        if asked[0] == "PATCH":
            raise ApiStatusError("HTTP 403: closed for today", status=403)
        return super().request()


_HELD = make_pod({}, gates=[holds.GATE])
_LANDED = make_launcher(finalizers=[vms.STICKY], node="node-1")


def _uninstalled(api: Api, step: Callable[[uninstall.Removal], None]) -> Callable[[], str]:
    def produce() -> str:
        with redirect_stderr(io.StringIO()):
            return _raised(lambda: step(uninstall.Removal(api, "holdfast-system", 0.0)))

    return produce


def _preview(document: Mapping[str, Any]) -> str:
    seen = preview.preview(document, make_pipeline(), namespace="shop", now_ms=NOW_MS)
    return seen.refusals[0]


_MISSING = _Alike(status=404, reason="NotFound")
_WITHOUT_KUBEVIRT = _Alike(status=404)
_OTHERWISE = {"webhooks": [{"matchConditions": [{"name": "asks", "expression": "true"}]}]}
_VM_OF_SHOP = vms.VirtualMachine(Metadata(namespace="shop", name="db"))
_PODS = [Pod.of(make_pod({})), Pod.of(make_pod({}))]

COMMANDS: Sequence[Case] = (
    Case(_forbidden, "The cluster's RBAC does not let you do that."),
    Case(
        lambda: cli.told(ApiStatusError("HTTP 401: Unauthorized", status=401)),
        "The kubeconfig's token or certificate has expired, or is another cluster's.",
    ),
    Case(
        lambda: cli.told(UnreachableError("https://127.0.0.1:6443 does not answer: refused")),
        "Nothing answers at the kubeconfig's address.",
    ),
    Case(lambda: _raised(lambda: explain._pod(_MISSING, "shop", "web-0")), "No pod has that name."),
    Case(
        lambda: _raised(lambda: release._named(_MISSING, "shop", "web-0")), "No pod has that name."
    ),
    Case(
        lambda: _raised(lambda: release._named(_Alike(make_pod({})), "shop", "web-0")),
        "The pod carries no gate of Holdfast's.",
    ),
    Case(
        lambda: _raised(
            lambda: release._require_right(_Alike({"status": {"allowed": False}}), "shop")
        ),
        "Only who may `release` holds releases pods, also where no guard is installed.",
    ),
    Case(
        lambda: _raised(lambda: release._confirm(_PODS, can_ask=False)),
        "Several pods are selected, and standard input is no terminal.",
    ),
    Case(
        lambda: _raised(lambda: preview_command._documents("web.yaml")),
        "A file given to `preview` is missing or not readable.",
    ),
    Case(
        lambda: _raised(lambda: preview_command._documents("/dev/zero")).replace(
            "/dev/zero", "web.yaml"
        ),
        "A file given to `preview` is larger than a folder's manifests are.",
    ),
    Case(_not_yaml, "A file given to `preview` is not YAML."),
    Case(
        lambda: _preview(make_pod({"delay": 15})),  # type: ignore[dict-item]
        "In a file given to `preview`, a field has another type than Kubernetes asks for: often a "
        "number without quotes.",
    ),
    Case(
        lambda: _raised(lambda: sticky._all(_WITHOUT_KUBEVIRT, "shop", "virtualmachines", Pod, {})),
        "There are no VirtualMachines in the cluster.",
    ),
    Case(lambda: _raised(lambda: sticky._machine(_MISSING, "shop", "db")), "No VM has that name."),
    Case(lambda: _raised(lambda: sticky._existing(_MISSING, "node-9")), "No node has that name."),
    Case(
        lambda: sticky._unheard(_Alike({"items": [_OTHERWISE]}), vms.StickyArgs()),
        "The cluster goes by another `nodeAnnotation`, or without the plugin `sticky`. `sticky "
        "set` and `sticky clear` write nothing then; `list` and `show` warn of it.",
    ),
    Case(
        lambda: _raised(lambda: sticky._required(_VM_OF_SHOP, None)),
        "The configuration that was given leaves the VM alone.",
    ),
    Case(
        lambda: _raised(lambda: release._check_outcome(1, 2)),
        "Somebody refuses the release of some of the pods; the reason stands with each of them.",
    ),
    Case(
        lambda: _raised(reading.Time().now_ms),
        "A proxy takes the `Date` header off the answers, so nobody can say how long a pod waits.",
    ),
    Case(
        lambda: _raised(lambda: reading.one(_Alike("hello"), "/api/v1/nodes/node-1", Node)),
        "Something else than an API server answers at the kubeconfig's address.",
        "check --kubeconfig and --context.",
    ),
    Case(
        lambda: _raised(lambda: uninstall._confirm("https://x", can_ask=False)),
        "`uninstall` asks first, and standard input is no terminal.",
    ),
    Case(
        _uninstalled(_Alike({"items": [_HELD]}), lambda of: of.wait_for_releases()),
        "`uninstall --release wait` needs a controller that releases the pods.",
    ),
    Case(
        _uninstalled(
            _Alike({"items": [_LANDED]}),
            lambda of: of.record_landings(purge=False),
        ),
        "Where the VM of a pod runs is not written down yet, and only the controller does so.",
    ),
    Case(
        _uninstalled(_Alike({"items": [make_pod({})]}), lambda of: of.stop_controller()),
        "A step of `uninstall` takes longer than `--timeout`.",
        "mend what is named, or give it longer; run it again.",
    ),
    Case(
        _uninstalled(_Unyielding(_HELD), lambda of: of.clear_pods()),
        "The API server, or another webhook, refuses what `uninstall` clears up.",
    ),
    Case(
        _uninstalled(_Unyielding(make_vm({vms.STICKY_NODE: "node-1"})), lambda of: of.forget_vms()),
        "The same, of the record on a VM, with `--purge`.",
    ),
)

MISUSE: Sequence[Case] = (
    Case(
        lambda: _raised(lambda: release._check_selection([], options.Scope())),
        "`release` neither names pods nor selects any.",
    ),
    Case(
        lambda: _raised(
            lambda: release._check_selection(["web-0"], options.Scope(all_namespaces=True))
        ),
        "`release POD` was given `-A`.",
    ),
    Case(_started(preview_command.preview), "`preview` was given no file."),
    Case(
        _started(list_command.list, "--watch", "-o", "json"),
        "`list --watch` was asked for what only tables can show.",
    ),
    Case(_started(check_config), "`check-config` was given no file."),
    Case(_started(cli.cli, "lst"), "There is no such command."),
)

# --- the control plane of tests and demo -------------------------------------------------------


def _os_error(code: int) -> Callable[[], str]:
    return lambda: str(from_os_error(OSError(code, os.strerror(code), "FILE"), Path("FOLDER")))


def _build(*tail: str) -> Callable[[], str]:
    return lambda: str(build_failure(tail, Path("LOG"), Path("FOLDER")))


def _no_room() -> str:
    text = _raised(lambda: require_room([Path("FOLDER")], 10**18))
    return re.sub(r"[0-9.]+ GB", "N GB", text)


CONTROL_PLANE: Sequence[Case] = (
    Case(_no_room, "There is too little room to build."),
    Case(lambda: str(disk_full(Path("FOLDER"))), "The disk ran full."),
    Case(_os_error(errno.EACCES), "The cache folder is not writable."),
    Case(
        _build("go: downloading x", 'Get "https://x": dial tcp: lookup x: no such host'),
        "Go cannot reach a module proxy.",
    ),
    Case(_build("x.go:1:2: undefined: y"), "A build failed."),
    Case(
        lambda: str(port_taken(8443)),
        "The API server's port was chosen and is in use.",
    ),
    Case(
        lambda: _raised(lambda: Settings(nodes=-1)),
        "`--nodes` is negative.",
    ),
)

# --- what a release can meet -------------------------------------------------------------------


def _problem(annotations: Mapping[str, str]) -> Callable[[], str]:
    return lambda: (
        holds.decide(annotations, created_ms=NOW_MS, uid=UID, delay_keys=holds.DELAY_KEYS).problem
    )


PROBLEMS: Sequence[Case] = (
    Case(
        _problem({}),
        "A pod has our gate, and no annotation of a delay, a time or a jitter.",
        "none is needed where somebody removed them on purpose.",
    ),
    Case(
        _problem({"delay": "soon", holds.HELD: "delay=15s"}),
        "An annotation became unreadable past the validation; the hint decides.",
        "correct the annotation.",
    ),
    Case(
        _problem({"delay": "soon"}),
        "The same, without a hint: nothing says how long to hold it.",
        "correct the annotation; the pod is released meanwhile.",
    ),
)

CASES: Mapping[str, Sequence[Case]] = MappingProxyType(
    {
        "Refusals at admission": REFUSALS,
        "Placement: refusals and warnings": PLACEMENT,
        "Refusals of VMs and their pods": STICKY,
        "Warnings at admission": WARNINGS,
        "Refusals by the guard": GUARD,
        "Answers to what is no review": ANSWERS,
        "Configuration": CONFIGURATION,
        "Configuration: rules of placement": RULES,
        "Start of a command": START,
        "Commands for people": COMMANDS,
        "Commands that are called wrongly": MISUSE,
        "Notes of Events": PROBLEMS,
        "The control plane of tests and demo": CONTROL_PLANE,
    }
)
