"""`holdfast doctor` findings on a cluster, and checks that lack permission."""

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast.certs import authority
from holdfast.webhook.cli import doctor, webhook_checks
from holdfast.webhook.cli.controller_checks import ControllerChecks
from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import boot_time
from holdfast.webhook.model import approvals, kubevirt
from holdfast.webhook.model.paths import api_path
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.policies.builder import InstallationNames
from holdfast.webhook.registration import configurations
from holdfast.webhook.report.doctor.diagnosis import Finding, Level
from tests.support.builders import CREATED, CREATED_MS, held, make_profiles
from tests.support.fakes import FakeApi, raising, status_error, unreachable

OWN = "elsewhere"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/holdfast-controller"
WEBHOOK, CONTROLLER = "holdfast-webhook", "holdfast-controller"
POD = f"{listing.pods_path(OWN)}/controller"
DENIED = "ValidatingAdmissionPolicy 'holdfast-approval' with binding 'holdfast-approval' denied it"


def cluster(namespace: str = OWN) -> FakeApi:
    """Create an API with a Holdfast pod, and the policies of an installation in `namespace`."""
    api = FakeApi()
    api.put(POD, {"metadata": {"name": "controller", "namespace": OWN}})
    for policy in pod_policies.policies(make_profiles(), InstallationNames(namespace)):
        if policy["kind"] == "ValidatingAdmissionPolicy":
            name = policy["metadata"]["name"]
            path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
            api.put(f"{path}/{name}", policy)
    return api


def checks(api: FakeApi, text: str = "") -> ControllerChecks:
    return ControllerChecks(api, OWN, "shop", CREATED_MS, profiles=[make_profiles(text)])


def guard_levels(api: FakeApi) -> list[Level]:
    return [finding.level for finding in checks(api)._guard()]


def test_guard_must_exist_for_this_namespace_and_reject_a_forged_approval() -> None:
    api = cluster()
    api.before("PATCH", raising(ApiStatusError(DENIED, status=422)))
    assert guard_levels(api) == [Level.OK]
    api.before("PATCH", raising(status_error(403)))
    with pytest.raises(ApiStatusError):  # the user may not patch pods
        guard_levels(api)
    assert guard_levels(api) == [Level.PROBLEM]
    assert approvals.APPROVED_BY in str(api.objects[POD])  # the fake API stores dry runs
    assert guard_levels(cluster("holdfast-system")) == [Level.PROBLEM]
    assert guard_levels(FakeApi()) == [Level.WARNING]


@pytest.mark.parametrize(
    ("minutes", "level"), [(1, Level.WARNING), (60, Level.PROBLEM)], ids=["new CA", "old CA"]
)
def test_missing_certificate_is_a_warning_only_during_rotation(minutes: int, level: Level) -> None:
    ca = authority.new_ca("holdfast", now=CREATED - timedelta(minutes=minutes))
    (finding,) = webhook_checks._served("Service a/b", b"", ca.certificate, CREATED_MS)
    assert finding.level is level


def run_doctor(api: FakeApi, namespace: str = OWN) -> list[Finding]:
    """Run all checks as a user whose namespace is `shop`."""
    time = listing.CommandClock()
    time.observe(sent=boot_time(), received=boot_time(), date=CREATED_MS / 1_000)
    return [*doctor.examine(api, "https://server", time, namespace, "shop")]


def test_unreachable_cluster_is_an_error() -> None:
    api = FakeApi()
    api.before("GET", raising(unreachable()))
    with pytest.raises(UnreachableError):
        run_doctor(api)


def put_list(api: FakeApi, path: str, *items: Any) -> None:
    api.answers[path] = json.dumps({"metadata": {}, "items": items}).encode()


def register_webhooks(api: FakeApi, *namespaces: str) -> None:
    """Register configurations that call the Service of a namespace."""
    items = []
    for namespace in namespaces:
        client_config = {"service": {"namespace": namespace, "name": WEBHOOK}}
        webhook = {"name": "pods", "clientConfig": client_config}
        items.append({"metadata": {"name": "holdfast"}, "webhooks": [webhook]})
    for path in configurations.paths(""):
        put_list(api, path.rstrip("/"), *items)


def deploy(api: FakeApi, name: str, replicas: int = 2) -> None:
    spec = {"replicas": replicas, "template": {"spec": {"containers": []}}}
    api.put(f"/apis/apps/v1/namespaces/{OWN}/deployments/{name}", {"spec": spec})


def test_installation_in_another_namespace_is_reported() -> None:
    api = FakeApi()
    register_webhooks(api, "right")
    installation = next(
        finding for finding in run_doctor(api, "wrong") if finding.about == "installation"
    )
    assert installation.level is Level.PROBLEM
    assert installation.text.startswith("nothing is installed in namespace wrong")
    assert "--namespace right" in installation.cure


NIGHTLY = """
profiles:
- pluginConfig:
  - {name: window, args: {windows: [{name: nightly, open: ["Sun 11:00-13:00"]}]}}
"""


@pytest.mark.parametrize(
    ("hours", "expected"),
    [(-2, "1 held, none overdue"), (1, "1 of 1 is overdue: default/web-0")],
    ids=["not open yet", "open"],
)
def test_installed_configuration_determines_overdue_pods(hours: int, expected: str) -> None:
    window = "holdfast.dev/window"
    api = FakeApi(held({window: "nightly"}, gates=[window], created=CREATED - timedelta(hours=3)))
    now_ms = CREATED_MS + hours * 3_600_000
    profiles = [make_profiles(NIGHTLY)]
    (finding,) = ControllerChecks(api, OWN, "shop", now_ms, profiles=profiles)._read_held()
    assert finding.text == expected


# --- incomplete installations --------------------------------------------------------------------

GONE = "webhook configurations"
INCOMPLETE = f"incomplete in namespace {OWN}, as during its removal: no"


@pytest.mark.parametrize(
    ("left", "text"),
    [
        pytest.param([WEBHOOK, CONTROLLER], f"{INCOMPLETE} {GONE}"),
        pytest.param([CONTROLLER], f"{INCOMPLETE} {GONE} and no Deployment {WEBHOOK}"),
        pytest.param([GONE], f"{INCOMPLETE} Deployment {WEBHOOK}"),
        pytest.param([], f"nothing is installed in namespace {OWN}"),
    ],
    ids=["webhooks removed", "webhook server removed", "webhooks left", "nothing left"],
)
def test_partially_removed_installation(left: list[str], text: str) -> None:
    api = FakeApi()
    register_webhooks(api, *[OWN for name in left if name == GONE])
    for name in left:
        if name != GONE:  # helm's hook scales the controller to 0 before its Deployment is deleted
            deploy(api, name, replicas=int(name == WEBHOOK))
    findings = run_doctor(api)
    (installation,) = (finding for finding in findings if finding.about == "installation")
    assert installation.level is Level.PROBLEM
    assert installation.text == text
    assert "install" in installation.cure
    assert ("holdfast uninstall --release now" in installation.cure) is bool(left)
    cures = " ".join(finding.cure for finding in findings)
    assert not [
        word for word in ("restart", "scale", "start the", "check the pods") if word in cures
    ]


def test_complete_installation_is_not_reported_as_incomplete() -> None:
    api = FakeApi()
    register_webhooks(api, OWN)
    deploy(api, WEBHOOK)
    findings = run_doctor(api)
    assert "installation" not in [finding.about for finding in findings]
    assert "kubectl -n elsewhere rollout status" in " ".join(finding.cure for finding in findings)


# --- permissions ---------------------------------------------------------------------------------


def allow_only_shop(_method: str, path: str) -> None:
    if path not in {"/version", "/api/v1/namespaces/shop/pods"}:
        raise status_error(403)


@pytest.mark.parametrize(
    ("due", "outcome"),
    [("1h", "no problem"), ("1s", "with problems")],
    ids=["not due", "overdue"],
)
def test_user_with_permissions_in_one_namespace(due: str, outcome: str) -> None:
    api = FakeApi(held({"delay": due}, namespace="shop", created=CREATED - timedelta(minutes=1)))
    api.on_request = allow_only_shop
    *findings, summary = run_doctor(api)
    (pods,) = (finding for finding in findings if finding.about == "held pods")
    assert pods.text.startswith("in namespace shop: 1 ")
    assert (summary.level, summary.about) == (Level.UNKNOWN, "summary")
    assert summary.text == (
        "not checked, for lack of permission: Event times, webhooks, Deployment, configuration, "
        "leader, other namespaces, deleted pods, freezes, guard, controller, KubeVirt; checked, "
        f"{outcome}: API server, clock, held pods"
    )
    assert summary.cure == "ask a cluster admin to run holdfast doctor"


class ReviewingApi(FakeApi):
    """Answers access reviews for the controller, and denies the pairs in `denied`."""

    denied = frozenset[tuple[str, str]]()

    def request(self, method: str, path: str, *, body: bytes | None = None, **given: Any) -> bytes:
        if not path.endswith("/subjectaccessreviews"):
            return super().request(method, path, body=body, **given)
        spec = json.loads(body or b"{}")["spec"]
        assert spec["user"] == f"system:serviceaccount:{OWN}:{CONTROLLER}"
        attributes = spec["resourceAttributes"]
        requested = attributes["verb"], f"{attributes['resource']}.{attributes.get('group', '')}"
        return json.dumps({"status": {"allowed": requested not in self.denied}}).encode()


SECRETS = "profiles: [{pluginConfig: [{name: after, args: {kinds: [jobs, secrets]}}]}]"


@pytest.mark.parametrize(
    ("denied", "missing"),
    [
        ([], ""),
        ([("watch", "jobs.batch")], "watch jobs.batch: pods that wait for a job stay held"),
        ([("list", "secrets.")], "list secrets: pods that wait for a secret stay held"),
        ([("list", "namespaces.")], "list namespaces: it may release pods in frozen ones"),
        ([("list", "deployments.apps"), ("list", "pods.")], ""),
    ],
    ids=["none", "jobs", "secrets", "namespaces", "other kinds"],
)
def test_missing_controller_permission(denied: list[tuple[str, str]], missing: str) -> None:
    api = ReviewingApi()
    api.denied = frozenset(denied)
    assert [*checks(api, SECRETS)._permissions()] == []  # no Lease, as with holdfast dev
    api.put(LEASES.format(OWN), {"spec": {}})
    findings = [*checks(api, SECRETS)._permissions()]
    account = f"system:serviceaccount:{OWN}:{CONTROLLER}"
    assert [finding.text for finding in findings] == (
        [f"{account} may not {missing}"] if missing else []
    )
    for finding in findings:
        assert (finding.level, finding.about) == (Level.PROBLEM, "permissions")
        assert "holdfast rbac" in finding.cure


@pytest.mark.parametrize(
    ("account", "expected"),
    [("auto", 0), (kubevirt.controller_account("cnv"), 0), (kubevirt.CONTROLLER_ACCOUNT, 1)],
)
def test_sticky_account_must_match_the_kubevirt_installation(account: str, expected: int) -> None:
    sticky = f"profiles: [{{pluginConfig: [{{name: sticky, args: {{account: '{account}'}}}}]}}]"
    api = FakeApi()
    assert [*checks(api, sticky)._virt_controllers()] == []  # a cluster without KubeVirt
    put_list(api, kubevirt.INSTALLATIONS, {"metadata": {"namespace": "cnv"}})
    api.put(api_path("v1", "serviceaccounts", "cnv", kubevirt.CONTROLLER), {})
    _, *findings = checks(api, sticky)._virt_controllers()
    expected_account = kubevirt.controller_account("cnv")
    problem = (
        Level.PROBLEM,
        "KubeVirt",
        f"plugin sticky is configured with account {account}, not {expected_account}",
        "set its argument account to auto",
    )
    assert findings == [problem] * expected


def put_leases(api: FakeApi, **renewed: str) -> None:
    for namespace, renew_time in renewed.items():
        spec = {"holderIdentity": namespace, "renewTime": renew_time, "leaseDurationSeconds": 12}
        api.put(LEASES.format(namespace), {"spec": spec})


def test_only_a_current_lease_in_holdfasts_namespace_counts() -> None:
    api = FakeApi()
    put_leases(api, shop="9999-12-31T23:59:59.000000Z")
    (finding,) = checks(api)._leader()
    assert finding.text.startswith("no controller has ever been elected")
    put_leases(api, **{OWN: "2026-03-01T11:59:00.000000Z"})
    (finding,) = checks(api)._leader()
    assert finding.text.startswith("no controller is the leader; the last Lease expired")
    put_leases(api, **{OWN: "0000-01-01T00:00:00.000000Z"})  # Python has no year 0
    (finding,) = checks(api)._leader()
    assert finding.level is Level.PROBLEM
