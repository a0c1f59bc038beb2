"""Error messages, each produced by the product's own code.

`docs.generate` writes those with a note into docs/how-to/troubleshooting.md; the others say what to
do themselves. tests/tooling/test_docs.py runs each case.
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
from holdfast.webhook import plugins, safe_yaml
from holdfast.webhook.cli import (
    explain,
    main,
    release,
    removal,
    rights,
    sticky,
    targets,
    terminal,
    vm_records,
)
from holdfast.webhook.cli import list as list_command
from holdfast.webhook.cli import preview as preview_command
from holdfast.webhook.cli.check_config import check_config
from holdfast.webhook.cli.controller import controller
from holdfast.webhook.cli.serve import serve
from holdfast.webhook.config import config
from holdfast.webhook.errors import ApiStatusError, HoldfastError, UnreachableError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.profiles import Verdict
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.kube.leader_election import own_namespace
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import (
    DELAY_GATE,
    DELAY_KEYS,
    HELD_ANNOTATION,
    JITTER,
    NOT_BEFORE,
    decide_due,
)
from holdfast.webhook.model.nodes import Node
from holdfast.webhook.plugins import sticky_policy
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies import vms
from holdfast.webhook.report.pod_status import PodWithStatus
from holdfast.webhook.report.preview import OfflinePreview
from holdfast.webhook.runtime import pipelines
from holdfast.webhook.server.gunicorn_app import listen
from holdfast.webhook.server.handler import AdmissionHandler
from holdfast.webhook.server.tls import load_pair, new_context
from holdfast.webhook.telemetry.metrics import ServerMetrics
from tests.support import config_cases
from tests.support.builders import UID, body, make_pipeline, make_pod, make_profiles, read_review
from tests.support.fakes import FakeLookup
from tests.support.vm_builders import VM_UID, make_launcher, make_vm, make_vmi

NOW_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
HEAD = "apiVersion: holdfast.dev/v1beta1\nkind: HoldfastConfiguration\n"


class Case(NamedTuple):
    """A message, and what the page says about it beyond the message itself."""

    produce: Callable[[], str]
    note: str = ""


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
    copied = {kubevirt.STICKY_NODE: "node-1", kubevirt.STICKY_NODE_UID: "another"}
    new, old = make_vm({**copied, kubevirt.STICKY_NODE: node}), make_vm(copied)
    review = read_review(new, kind=_VM, operation="UPDATE", old=old)
    return make_pipeline().validate(review, now_ms=NOW_MS).message


def _launched(
    annotations: Mapping[str, str],
    *,
    vm_uid: str = VM_UID,
    point: str = "mutate",
    creator: str = kubevirt.CONTROLLER_ACCOUNT,
    pod: Mapping[str, Any] | None = None,
    configuration: str = "",
) -> str:
    objects = {
        kubevirt.vmi_path("default", "vm"): make_vmi(),
        kubevirt.vm_path("default", "vm"): make_vm(annotations, uid=vm_uid),
    }
    handle = Handle()
    handle.connect(lookup=FakeLookup(objects))
    review = read_review(pod or make_launcher(), userInfo={"username": creator})
    pipeline = make_pipeline(configuration, handle=handle)
    verdict: Verdict = getattr(pipeline, point)(review, now_ms=NOW_MS)
    return verdict.message


def _delay(value: str) -> Callable[[], str]:
    return lambda: _mutated({DELAY_KEYS[0]: value})


def _not_before(value: str) -> Callable[[], str]:
    return lambda: _mutated({NOT_BEFORE: value})


_VM = {"group": "kubevirt.io", "version": "v1", "kind": kubevirt.VM}
_IGNORE = (
    "profiles: [{plugins: {enabled: [{name: delay}]},"
    " pluginConfig: [{name: delay, args: {onInvalid: ignore}}]}]"
)

_LAST = (
    "[call Holdfast last](install.md#call-holdfast-last). `reinvocationPolicy` does not help: API "
    "servers call a webhook again only if they have called it before. The same goes for a node "
    "requirement that the pod lacks, and `spec.affinity`."
)

REFUSALS: Sequence[Case] = (
    Case(_delay("soon")),
    Case(_delay("-15")),
    Case(_delay("9223372036854775808")),
    Case(_delay("2562048h")),
    Case(_not_before("tomorrow")),
    Case(_not_before("2026-12-24T18:00:00+24:00")),
    Case(_not_before("9999-12-31T23:59:59-00:01")),
    Case(lambda: _mutated({"holdfast.dev/delay": "15", "delay": "20"})),
    Case(
        lambda: _mutated({"delay": "160h", JITTER: "12h"}),
    ),
    Case(
        _not_before("2027-01-01T00:00:00Z"),
    ),
    Case(lambda: _template("Deployment", "apps", "soon")),
    Case(
        lambda: _validated({"delay": "15"}),
        f"Configure the other webhook to leave `spec.schedulingGates` alone, or {_LAST}",
    ),
    Case(
        lambda: _validated({NOT_BEFORE: "2026-03-01T12:30:00Z"}, now_ms=NOW_MS + 3_600_000),
    ),
    Case(
        lambda: _crowded(tolerations=[{}] * 1_001),
    ),
    Case(lambda: _validated({}, finalizers=["holdfast.dev/sticky"])),
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
        onConflict: reject
"""

PLACEMENT: Sequence[Case] = (
    Case(
        lambda: _mutated(_EDGE, _STRICT, spec=_CORE),
    ),
    Case(
        lambda: _mutated(_EDGE, spec=_CORE),
    ),
    Case(
        lambda: _validated(_EDGE),
    ),
    Case(
        lambda: _validated({**_EDGE, "holdfast.dev/placed": "space@00000000"}),
        "Nothing to do: a new configuration is rolling out.",
    ),
    Case(
        lambda: _mutated(_EDGE, node="node-1"),
    ),
    Case(
        _of_daemon_set,
    ),
)


def _pinned_twice() -> str:
    """Validate a pod that was pinned, and once more when the VM's record had changed."""
    pins = [
        {"key": "metadata.name", "operator": "In", "values": [node]}
        for node in ("node-1", "node-2")
    ]
    required = {"nodeSelectorTerms": [{"matchFields": pins}]}
    pod = make_launcher(finalizers=[kubevirt.STICKY])
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    return _launched({kubevirt.STICKY_NODE: "node-2"}, point="validate", pod=pod)


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
    review = body(make_launcher(), userInfo={"username": kubevirt.CONTROLLER_ACCOUNT})
    answering = AdmissionHandler(make_pipeline(handle=handle), ServerMetrics(), conditions="")
    answer = json.loads(answering.handle("/mutate", "application/json", review).body)
    return str(answer["response"]["status"]["message"])


STICKY: Sequence[Case] = (
    Case(
        _looked_up_in_vain,
        "KubeVirt retries. If the error persists, apply `manifests/kubevirt`, or check the API "
        "server's answer after the colon.",
    ),
    Case(lambda: _vm({kubevirt.STICKY: "yes"})),
    Case(lambda: _vm({kubevirt.STICKY_NODE: "Node 1"})),
    Case(
        lambda: _clone_sent_to("node-2"),
    ),
    Case(
        lambda: _launched({kubevirt.STICKY_NODE: "Node 1"}),
    ),
    Case(
        lambda: _launched(
            {},
            creator="system:serviceaccount:openshift-cnv:kubevirt-controller",
            configuration=f"{HEAD}profiles: [{{pluginConfig: [{{name: sticky, args: {{account: "
            f"'{kubevirt.CONTROLLER_ACCOUNT}'}}}}]}}]",
        ),
        "Set [`account`](../reference/configuration.md#sticky) if KubeVirt runs in that namespace. "
        "Otherwise find out who uses its account name.",
    ),
    Case(
        lambda: _launched({}, vm_uid="another"),
    ),
    Case(
        lambda: _launched({kubevirt.STICKY_NODE: "node-1"}, point="validate"),
    ),
    Case(
        _pinned_twice,
    ),
)

WARNINGS: Sequence[Case] = (
    Case(
        lambda: _mutated({"delay": "soon"}, _IGNORE),
    ),
    Case(
        lambda: _mutated({"delay": "15"}, node="node-1"),
    ),
    Case(
        lambda: _template("Deployment", "apps", "15m", progressDeadlineSeconds=600),
    ),
    Case(
        lambda: _template("Deployment", "apps", "15m", node="node-1"),
    ),
    Case(
        lambda: _template("Job", "batch", "60", activeDeadlineSeconds=30),
    ),
    Case(
        lambda: _template("StatefulSet", "apps", "60", replicas=3),
    ),
    Case(
        lambda: _template("Deployment", "apps", "60", strategy={"type": "Recreate"}),
    ),
)


# --- the guard ---------------------------------------------------------------------------------


def _policy(name: str, index: int = 0) -> str:
    made = pod_policies.policies(make_profiles())
    (policy,) = (
        one for one in made if one["metadata"]["name"] == name and "validations" in one["spec"]
    )
    return str(policy["spec"]["validations"][index]["message"])


GUARD: Sequence[Case] = (
    Case(
        lambda: _policy(pod_policies.HOLD),
    ),
    Case(
        lambda: _policy(pod_policies.CONTROLLER_PODS, 3),
        "The controller never does this: find out who uses its account.",
    ),
    Case(
        lambda: _policy(vms.CONTROLLER_VMS, 1),
    ),
    Case(
        lambda: _policy(pod_policies.CONTROLLER_WEBHOOKS, 1),
    ),
)

# --- answers of the admission server to invalid requests ---------------------------------------


def _answered(content: bytes, content_type: str, coding: str = "identity") -> str:
    answering = AdmissionHandler(make_pipeline(), ServerMetrics(), conditions="")
    answer = answering.handle("/mutate", content_type, content, coding)
    return f"HTTP {answer.status}: {answer.body.decode().strip()}"


def _deployment() -> bytes:
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    return body({"metadata": {}, "spec": {"template": {}}}, kind=kind)


ANSWERS: Sequence[Case] = (
    Case(lambda: _answered(b"{}", "text/plain")),
    Case(
        lambda: _answered(b"{}", "application/json", "gzip"),
    ),
    Case(
        lambda: _answered(b"{}", "application/json"),
    ),
    Case(
        lambda: _answered(_deployment(), "application/json"),
    ),
)

# --- configuration -----------------------------------------------------------------------------


def _configured(yaml: str) -> Callable[[], str]:
    def build() -> None:
        parsed = config.parse(yaml.encode(), "holdfast.yaml")
        pipelines.build_profiles(parsed, plugins.registry([]), source="holdfast.yaml")

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
    Case(lambda: _raised(lambda: config.load(Path("holdfast.yaml")))),
    Case(_configured("a: [")),
    Case(_configured("- a")),
    Case(_configured("apiVersion: v1\nkind: HoldfastConfiguration")),
    Case(_delay_args("{maxDelays: 24h}")),
    Case(_delay_args("{maxDelay: 24}")),
    Case(_delay_args("{maxDelay: 1d}")),
    Case(_delay_args("{annotations: []}")),
    Case(_delay_args("{annotations: [holdfast.dev/jitter]}")),
    Case(_delay_args("{annotations: [a b]}")),
    Case(_delay_args("{annotations: [a, a]}")),
    Case(_configured(f"{HEAD}profiles: [{{plugins: {{enabled: [{{name: dely}}]}}}}]")),
    Case(
        _configured(
            f"{HEAD}profiles: [{{plugins: {{enabled: [{{name: delay}}, {{name: delay}}]}}}}]"
        )
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
        )
    ),
    Case(_configured(f"{HEAD}profiles: [{{}}, {{}}]")),
    Case(_configured(f"{HEAD}profiles: []")),
    Case(
        _placed("schedulerName: other"),
    ),
    Case(
        _placed("tolerations: [{operator: Exists}]"),
    ),
    Case(
        _configured(_HELD_LATE),
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
"""The invalid files of the tests."""

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
    Case(lambda: _raised(lambda: Cluster.connect(Path("nowhere")))),
    Case(_kubeconfig(b"a: &a x\nb: *a")),
    Case(
        _kubeconfig(b"users: [{user: {token: abc}}]"),
    ),
    Case(_kubeconfig(b"#" * (safe_yaml.SIZE_LIMIT + 1))),
    Case(
        lambda: _raised(own_namespace),
    ),
    Case(_started(controller, "--certificates", "self")),
    Case(
        _started(serve, "--cert", "tls.crt", "--key", "tls.key", "--client-ca", "ca.crt"),
    ),
    Case(lambda: _raised(lambda: new_context(Path("ca.crt")))),
    Case(
        _taken_port,
    ),
    Case(
        lambda: _raised(lambda: load_pair(new_context(), Path("tls.crt"), Path("tls.key"))),
    ),
)

# --- commands for people -----------------------------------------------------------------------


class _Alike:
    """An API that answers everything alike (`holdfast.webhook.kube.api.Api`)."""

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
    return main.with_advice(ApiStatusError(text, status=403))


def _not_yaml() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "web.yaml")
        path.write_text("a: [")
        return _raised(lambda: preview_command._documents(str(path))).replace(f"{folder}/", "")


class _Unyielding(_Alike):
    """An API whose objects no user may change."""

    def __init__(self, *objects: object) -> None:
        super().__init__({"metadata": {}, "items": objects})

    def request(self, *asked: object, **__: object) -> bytes:
        if asked[0] == "PATCH":
            raise ApiStatusError("HTTP 403: closed for today", status=403)
        return super().request()


_HELD = make_pod({}, gates=[DELAY_GATE])
_LANDED = make_launcher(finalizers=[kubevirt.STICKY], node="node-1")


def _uninstalled(api: Api, step: Callable[[removal.Removal], None]) -> Callable[[], str]:
    def produce() -> str:
        with redirect_stderr(io.StringIO()):
            return _raised(lambda: step(removal.Removal(api, "holdfast-system", 0.0)))

    return produce


def _preview(document: Mapping[str, Any]) -> str:
    seen = OfflinePreview(make_pipeline(), "shop", NOW_MS).preview(document)
    return seen.refusals[0]


_EMPTY_DEPLOYMENT = _Alike({"metadata": {}, "items": [], "spec": {"selector": {}}})
_MISSING = _Alike(status=404, reason="NotFound")
_WITHOUT_KUBEVIRT = _Alike(status=404)
_OTHERWISE = {"webhooks": [{"matchConditions": [{"name": "asks", "expression": "true"}]}]}
_VM_OF_SHOP = kubevirt.VirtualMachine(kubevirt.TracedMetadata(namespace="shop", name="db"))

COMMANDS: Sequence[Case] = (
    Case(_forbidden),
    Case(
        lambda: main.with_advice(ApiStatusError("HTTP 401: Unauthorized", status=401)),
    ),
    Case(
        lambda: main.with_advice(
            UnreachableError("https://127.0.0.1:6443 does not answer: refused")
        )
    ),
    Case(lambda: _raised(lambda: explain._pods(_MISSING, "shop", targets.parse("web-0")))),
    Case(
        lambda: release._unheld(
            msgspec.convert(
                {**make_pod({}, node="node-2"), "status": {"phase": "Running"}}, PodWithStatus
            )
        )
    ),
    Case(lambda: _raised(lambda: targets.parse("service/web"))),
    Case(
        lambda: _raised(
            lambda: explain._pods(_EMPTY_DEPLOYMENT, "shop", targets.parse("deployment/web"))
        )
    ),
    Case(
        lambda: _raised(
            lambda: rights.require(
                _Alike({"status": {"allowed": False}}),
                "shop",
                "release pods",
                pod_policies.RELEASE_VERB,
                pod_policies.RELEASER,
            )
        ),
    ),
    Case(lambda: _raised(lambda: terminal.confirm("Release 2 pods now?", can_ask=False))),
    Case(lambda: _raised(lambda: preview_command._documents("web.yaml"))),
    Case(
        lambda: _raised(lambda: preview_command._documents("/dev/zero")).replace(
            "/dev/zero", "web.yaml"
        )
    ),
    Case(_not_yaml),
    Case(
        lambda: _preview(make_pod({"delay": 15})),  # type: ignore[dict-item]
    ),
    Case(lambda: _raised(lambda: vm_records.machine(_WITHOUT_KUBEVIRT, "shop", "db"))),
    Case(lambda: _raised(lambda: vm_records.machine(_MISSING, "shop", "db"))),
    Case(lambda: _raised(lambda: sticky._existing(_MISSING, "node-9"))),
    Case(
        lambda: vm_records.mismatch(
            _Alike({"metadata": {}, "items": [_OTHERWISE]}), sticky_policy.StickyArgs()
        ),
    ),
    Case(lambda: _raised(lambda: vm_records.required(_VM_OF_SHOP, None))),
    Case(lambda: _raised(lambda: terminal.check_outcome(["pod shop/web-0 not released"], 2))),
    Case(
        lambda: _raised(listing.Time().now_ms),
    ),
    Case(
        lambda: _raised(lambda: listing.one(_Alike("hello"), "/api/v1/nodes/node-1", Node)),
        "The server at this address is not an API server. Check `--kubeconfig` and `--context`.",
    ),
    Case(
        _uninstalled(_Alike({"metadata": {}, "items": [_HELD]}), lambda of: of.wait_for_releases())
    ),
    Case(
        _uninstalled(
            _Alike({"metadata": {}, "items": [_LANDED]}),
            lambda of: of.record_landings(purge=False),
        ),
    ),
    Case(
        _uninstalled(
            _Alike({"metadata": {}, "items": [make_pod({})]}), lambda of: of.stop_controller()
        ),
    ),
    Case(
        _uninstalled(_Unyielding(_HELD), lambda of: of.clear_pods()),
    ),
    Case(
        _uninstalled(
            _Unyielding(make_vm({kubevirt.STICKY_NODE: "node-1"})), lambda of: of.forget_vms()
        ),
    ),
)

MISUSE: Sequence[Case] = (
    Case(_started(release.release)),
    Case(_started(release.release, "web-0", "-A")),
    Case(_started(preview_command.preview)),
    Case(_started(list_command.list, "-o", "jsn")),
    Case(_started(list_command.list, "-o", "jsonpath={.items[}")),
    Case(_started(main.cli, "-A", "version")),
    Case(_started(check_config)),
    Case(_started(main.cli, "lst")),
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
    Case(_no_room),
    Case(lambda: str(disk_full(Path("FOLDER")))),
    Case(_os_error(errno.EACCES)),
    Case(_build("go: downloading x", 'Get "https://x": dial tcp: lookup x: no such host')),
    Case(_build("x.go:1:2: undefined: y")),
    Case(lambda: str(port_taken(8443))),
    Case(lambda: _raised(lambda: Settings(nodes=-1))),
)

# --- what a release can meet -------------------------------------------------------------------


def _problem(annotations: Mapping[str, str]) -> Callable[[], str]:
    return lambda: (
        decide_due(annotations, created_ms=NOW_MS, jitter_key=UID, delay_keys=DELAY_KEYS).problem
    )


PROBLEMS: Sequence[Case] = (
    Case(
        _problem({}),
    ),
    Case(
        _problem({"delay": "soon", HELD_ANNOTATION: "delay=15s"}),
    ),
    Case(
        _problem({"delay": "soon"}),
    ),
)

CASES: Mapping[str, Sequence[Case]] = MappingProxyType(
    {
        "Delays and times": REFUSALS,
        "Placement": PLACEMENT,
        "Virtual machines": STICKY,
        "Admission warnings": WARNINGS,
        "Guard": GUARD,
        "HTTP errors of the admission server": ANSWERS,
        "Configuration": CONFIGURATION,
        "Placement rules in the configuration": RULES,
        "Startup": START,
        "Commands": COMMANDS,
        "Command usage": MISUSE,
        "Event notes": PROBLEMS,
        "The test control plane": CONTROL_PLANE,
    }
)
