"""Arguments that name pods or workloads, dry runs, and error messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.webhook.cli import targets
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.freezes import FREEZE
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.registration import configurations
from tests.support.builders import GATE, held, make_pod
from tests.support.config_cases import HEAD
from tests.support.fakes import KUBEVIRT, NAMESPACES, status_error
from tests.support.served import ServedApi
from tests.support.vm_builders import make_launcher, make_vm, make_vmi, owner_of
from tests.unit.cli.commands import written

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
VMS = f"{KUBEVIRT}/namespaces/default/virtualmachines"
APPROVAL = "holdfast.dev/approval"
LABELS = {"app": "web"}
DONE = {"release": "released", "approve": "approved", "deny": "denied"}
OTHERS = "it is Pending and has gates of other components: example.com/quota"


def controlled(owner: str, *, controller: bool = True) -> list[dict[str, Any]]:
    return [owner_of("Any", owner, f"uid-{owner}", api_version="a/v1", controller=controller)]


def deploy(cluster: ServedApi, *pods: str) -> None:
    selector = {"matchLabels": LABELS}
    document = {"metadata": {"uid": "uid-web"}, "spec": {"selector": selector}}
    cluster.api.put(f"{DEPLOYMENTS}/web", document)
    metadata = {"uid": "uid-web-1", "labels": LABELS, "ownerReferences": controlled("web")}
    cluster.api.put(f"{SETS}/web-1", {"metadata": metadata})
    for name in pods:
        pod = held({"delay": "1h"}, name=name, labels=LABELS, owners=controlled("web-1"))
        cluster.api.put_pod(pod)


def gates(cluster: ServedApi, name: str) -> list[str]:
    return cluster.api.gates(("default", name))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        pytest.param("a b a", ["pod/a", "pod/b"], id="names"),
        pytest.param("pod a b", ["pod/a", "pod/b"], id="type and names"),
        pytest.param("deploy web", ["deployment/web"], id="type and name"),
        pytest.param("job", ["pod/job"], id="pod named like a type"),
        pytest.param("pod sts/a", ["pod/pod", "statefulset/a"], id="mixed"),
        pytest.param(
            "a pods/a deploy/a deployments.apps/a StatefulSet/a vm/a",
            ["pod/a", "pod/a", "deployment/a", "deployment/a", "statefulset/a", "virtualmachine/a"],
            id="name, plural, short name, group, kind and VM",
        ),
    ],
)
def test_arguments(text: str, parsed: list[str]) -> None:
    results = targets.parse_all(text.split())
    assert [f"{target.kind}/{target.name}" for target in results] == parsed


@pytest.mark.parametrize("text", ["service/web", "pod/", "a/b/c", "/web"])
def test_unknown_type_error_lists_known_types(text: str) -> None:
    with pytest.raises(
        CommandError,
        match="give the name of a pod, or TYPE/NAME with one of the types pod, deployment, ",
    ):
        targets.parse(text)


@pytest.mark.parametrize(
    ("selector", "query"),
    [
        pytest.param({"a": "b", "c": "d"}, "a=b,c=d", id="labels only"),
        pytest.param(
            {
                "matchLabels": {"a": "b"},
                "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["d", "e"]},
                    {"key": "f", "operator": "NotIn", "values": ["g"]},
                    {"key": "h", "operator": "Exists"},
                    {"key": "i", "operator": "DoesNotExist"},
                ],
            },
            "a=b,c in (d,e),f notin (g),h,!i",
            id="expressions",
        ),
    ],
)
def test_selectors(selector: dict[str, Any], query: str) -> None:
    assert targets._selector(selector) == query


def test_release_reports_each_pod(cluster: ServedApi) -> None:
    deploy(cluster, "web-0")
    cluster.api.put_pod(held({"delay": "1h"}, name="a"))
    pod = make_pod({}, name="b", node="node-2")
    cluster.api.put_pod({**pod, "status": {"phase": "Running"}})
    cluster.api.put_pod(make_pod({}, name="c", gates=["example.com/quota"]))
    result = cluster.run("release", "b", "pod/a", "c", "missing", "deployment/web", code=1)
    assert result.stdout == "pod default/a released\npod default/web-0 released\n"
    assert result.stderr.splitlines()[:3] == [
        "pod default/b is not held: it is Running on node-2",
        f"pod default/c is not held: {OTHERS}",
        "pod default/missing not found; see kubectl get pods -n default",
    ]
    assert "3 of 5 failed; the reasons are above" in result.stderr
    assert gates(cluster, "a") == gates(cluster, "web-0") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("release a -n shop", "pod shop/a not found;"),
        (
            "release deployment/web",
            "deployment web in namespace default has no held pods; it has 0 pods",
        ),
        pytest.param(
            "explain deployment/web",
            "deployment web in namespace default has no pods; see kubectl describe deployment web "
            "-n default",
            id="no pods",
        ),
        ("sticky show other", "VM default/other not found; see holdfast sticky list -n default"),
        ("sticky set db node-9", "node node-9 not found; see kubectl get nodes"),
    ],
)
def test_single_problem_is_the_error(arguments: str, message: str, cluster: ServedApi) -> None:
    deploy(cluster)
    cluster.api.put(f"{VMS}/db", {"metadata": {"namespace": "default"}})
    assert cluster.run(*arguments.split(), code=1).stderr.startswith(message)


def test_missing_permission_error_names_the_role(cluster: ServedApi) -> None:
    cluster.unreviewed.add("holds")
    cluster.api.put_pod(held({"delay": "1h"}, name="a"))
    assert cluster.run("release", "a", code=1).stderr == (
        "you may not release pods in namespace default: the verb 'release' on holds.holdfast.dev "
        "is missing; ask an admin to bind the ClusterRole holdfast-releaser"
    )


@pytest.mark.parametrize("command", ["show db", "list"])
def test_vms_need_kubevirt(command: str, cluster: ServedApi) -> None:
    def unserved(_method: str, path: str) -> None:
        if path.startswith(KUBEVIRT):
            raise status_error(404)

    cluster.api.on_request = unserved
    assert cluster.run("sticky", *command.split(), code=1).stderr == (
        "this cluster has no KubeVirt, so there are no VMs; choose another --context"
    )


def test_sticky_clear_fails_if_the_record_is_not_read(cluster: ServedApi, tmp_path: Path) -> None:
    cluster.api.put(f"{VMS}/db", {"metadata": {"namespace": "default"}})
    webhook = {"matchConditions": [{"name": "asks", "expression": "true"}]}
    configuration_list = {"metadata": {}, "items": [{"webhooks": [webhook]}]}
    path = configurations.path("validating", "").rstrip("/")
    cluster.api.answers[path] = json.dumps(configuration_list).encode()
    assert cluster.run("sticky", "clear", "db", code=1).stderr == (
        "Holdfast in this cluster does not read annotation holdfast.dev/sticky-node of VMs; "
        "give the cluster's configuration with --config"
    )
    file = written(tmp_path, f"{HEAD}profiles: [{{plugins: {{disabled: [{{name: sticky}}]}}}}]")
    assert cluster.run("sticky", "clear", "db", "--config", file, code=1).stderr.endswith(
        "VM default/db: the sticky plugin does not run for its pods in this configuration; "
        "give the cluster's configuration with --config"
    )


def test_missing_pod_error_suggests_workload_of_same_name(cluster: ServedApi) -> None:
    deploy(cluster)
    stderr = cluster.run("explain", "web", code=1).stderr
    assert stderr == "pod default/web not found; did you mean deployment/web?"
    assert cluster.run("release", "web", code=1).stderr == stderr
    stderr = cluster.run("explain", "rs/foo", code=1).stderr
    assert stderr.endswith("; see kubectl get replicasets -n default")


@pytest.mark.parametrize("command", ["release", "approve", "deny"])
def test_names_or_selector_are_required(command: str, cluster: ServedApi) -> None:
    assert "give pods, TYPE/NAME or a selector with -l\n" in cluster.run(command, code=2).stderr
    assert "with -l, not both\n" in cluster.run(command, "a", "-l", "app=x", code=2).stderr
    assert "-A cannot be combined with names" in cluster.run(command, "a", "-A", code=2).stderr
    stderr = cluster.run(command, "-l", "app=x").stderr
    assert stderr.endswith(" selected; nothing was " + DONE[command] + ".\n")


@pytest.mark.parametrize("command", ["approve", "deny"])
def test_pods_are_approved_or_denied_by_label(command: str, cluster: ServedApi) -> None:
    for name, namespace in (("a", "default"), ("b", "default"), ("c", "shop")):
        fields = {"name": name, "namespace": namespace, "labels": LABELS}
        cluster.api.put_pod(held({APPROVAL: "why"}, gates=[APPROVAL], **fields))
    cluster.api.put_pod(held({APPROVAL: "why"}, gates=[APPROVAL], name="other"))
    deploy(cluster, "web-0")
    result = cluster.run(command, "-l", "app=web", code=1)
    assert f"({command.capitalize()} 2 pods now?); add --yes" in result.stderr
    assert cluster.api.writes() == []
    text = f"{DONE[command]} by jane: why\n"
    result = cluster.run(command, "-l", "app=web", "--yes")
    assert result.stdout == f"pod default/a {text}pod default/b {text}"
    result = cluster.run(command, "-A", "-l", "app=web", "--yes")
    assert f"pod shop/c {text}" in result.stdout


def test_replacement_pod_is_not_approved(cluster: ServedApi) -> None:
    pod = held({APPROVAL: "why"}, name="a", gates=[APPROVAL])
    cluster.api.put_pod(pod)

    def replace_pod() -> None:
        cluster.api.put_pod(held({APPROVAL: "why"}, name="a", gates=[APPROVAL], uid="new"))
        raise ApiStatusError("HTTP 422: the value at /metadata/uid differs", status=422)

    cluster.api.before("PATCH", replace_pod)
    result = cluster.run("approve", "a", code=1)
    assert result.stderr == "pod default/a not approved: it no longer waits for an approval"


def test_workload_release_needs_confirmation_but_named_pods_do_not(cluster: ServedApi) -> None:
    deploy(cluster, "web-0", "web-1")
    result = cluster.run("release", "deployment/web", code=1)
    assert "cannot ask without a terminal (Release 2 pods now?)" in result.stderr
    assert gates(cluster, "web-0") == [GATE]
    assert cluster.run("release", "web-0", "web-1").stdout.count("released") == 2


FOREIGN = {
    "bare": [],
    "another owner": controlled("other"),
    "not controlled": controlled("web-1", controller=False),
    "same name, another UID": [{**controlled("web-1")[0], "uid": "uid-forged"}],
}


@pytest.mark.parametrize("command", ["release", "approve", "deny"])
@pytest.mark.parametrize("owners", FOREIGN.values(), ids=FOREIGN)
def test_workload_excludes_pods_it_does_not_control(
    owners: list[dict[str, Any]], command: str, cluster: ServedApi
) -> None:
    """Users could otherwise have their own pod approved by giving it the labels."""
    deploy(cluster)
    cluster.api.put(f"{SETS}/web-0", {"metadata": {"uid": "uid-other", "labels": LABELS}})
    pod = held({APPROVAL: "why"}, gates=[APPROVAL], labels=LABELS, owners=owners)
    cluster.api.put_pod(pod)
    stderr = cluster.run(command, "deployment/web", code=1).stderr
    assert stderr.endswith("; it has 0 pods")
    assert cluster.api.writes() == []


@pytest.mark.parametrize(
    "kind", ["statefulset", "replicaset", "daemonset", "job", "replicationcontroller"]
)
def test_workload_includes_only_pods_it_controls(kind: str, cluster: ServedApi) -> None:
    target = targets.parse(f"{kind}/db")
    document = {"metadata": {"uid": "uid-db"}, "spec": {"selector": {"app": "web"}}}
    cluster.api.put(target.path("default"), document)
    for name, owner in (("bare", []), ("ours", controlled("db")), ("another", controlled("x"))):
        cluster.api.put_pod(make_pod(name=name, uid=name, labels=LABELS, owners=owner))
    (pod,) = target.pods(cluster.api, "default", Pod)
    assert pod.metadata.name == "ours"


@pytest.mark.parametrize("target", ["vm/db", "vmi/db"])
def test_pods_of_a_vm(target: str, cluster: ServedApi) -> None:
    cluster.api.put(f"{VMS}/db", make_vm(name="db"))
    vmi = make_vmi(name="db", uid="uid-db")
    cluster.api.put(f"{KUBEVIRT}/namespaces/default/virtualmachineinstances/db", vmi)
    for name, uid in (("db", "uid-db"), ("other", "uid-other"), ("forged", "uid-forged")):
        owners = [owner_of(kubevirt.VMI, "other" if name == "other" else "db", uid)]
        cluster.api.put_pod(make_launcher(name=f"virt-launcher-{name}", owners=owners))
    (pod,) = targets.parse(target).pods(cluster.api, "default", Pod)
    assert pod.metadata.name == "virt-launcher-db"


def test_explain_reports_each_pod_of_names_and_workloads(cluster: ServedApi) -> None:
    deploy(cluster, "web-0", "web-1")
    for command in ("explain", "describe"):
        assert cluster.run(command, "deployment/web").stdout.count("Pod default/web-") == 2
    result = cluster.run("explain", "web-0", "sts/web", "web-1", code=1)
    assert [line for line in result.stdout.splitlines() if line[:4] == "Pod "] == [
        "Pod default/web-0",
        "Pod default/web-1",
    ]
    assert result.stderr.startswith("statefulset default/web not found")
    assert "1 of 3 failed" in result.stderr


def test_approve_reports_each_pod(cluster: ServedApi) -> None:
    deploy(cluster, "web-0")
    cluster.api.put_pod(held({APPROVAL: "why"}, name="waiting", gates=[APPROVAL]))
    result = cluster.run("approve", "waiting", "web-0", "deployment/web", "deploy/x", code=1)
    assert result.stdout == "pod default/waiting approved by jane: why\n"
    assert sorted(result.stderr.splitlines()[:3]) == [
        "deployment default/x not found; see kubectl get deployments -n default",
        "deployment web in namespace default has no pods that wait for an approval; it has 1 pod",
        "pod default/web-0 not approved: it does not wait for an approval",
    ]
    denial = cluster.run("deny", "web-0", code=1)
    assert denial.stderr == "pod default/web-0 not denied: it does not wait for an approval"


@pytest.mark.parametrize(
    ("mode", "suffix"), [("client", "(dry run)"), ("server", "(server dry run)")]
)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("release deployment/web", id="release"),
        pytest.param("approve waiting", id="approve"),
        pytest.param("deny pod/waiting --reason no", id="deny"),
        pytest.param("freeze --reason incident --for 2m", id="freeze"),
        pytest.param("thaw -n frozen", id="thaw"),
        pytest.param("sticky set vm/db node-1", id="sticky set"),
        pytest.param("sticky clear db", id="sticky clear"),
        pytest.param("sticky move --from node-0 --to node-1", id="sticky move"),
    ],
)
def test_dry_run_stores_nothing(arguments: str, mode: str, suffix: str, cluster: ServedApi) -> None:
    deploy(cluster, "web-0", "web-1")
    cluster.api.put_pod(held({APPROVAL: "why"}, name="waiting", gates=[APPROVAL]))
    cluster.api.put(f"{NAMESPACES}/default", {})
    cluster.api.put(f"{NAMESPACES}/frozen", {"metadata": {"annotations": {FREEZE: "x"}}})
    cluster.api.put("/api/v1/nodes/node-1", {})
    cluster.api.put(f"{VMS}/db", make_vm({"holdfast.dev/sticky-node": "node-0"}, name="db"))
    result = cluster.run(*arguments.split(), f"--dry-run={mode}")
    assert suffix in result.stdout
    if mode == "server":
        queries = [
            query
            for (method, _), query in zip(cluster.api.requests, cluster.api.queries, strict=True)
            if method != "GET"
        ]
        assert queries
        assert {query.get("dryRun") for query in queries} == {"All"}
    else:
        assert cluster.api.writes() == []
    assert gates(cluster, "web-0") == [GATE]
