import base64
from typing import Any

import pytest

from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.stray_keys import StrayKeys
from holdfast.webhook.registration import configurations
from holdfast.webhook.registration.configurations import Registration, by_url
from tests.support.builders import make_profiles
from tests.support.scripted import Scripted, profiles_of

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/holdfast"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/holdfast"


@pytest.fixture
def found() -> dict[str, Any]:
    return Registration("holdfast", by_url("10.0.0.1:8443", b"PEM")).configurations(make_profiles())


def webhooks(documents: dict[str, Any]) -> dict[str, Any]:
    return {
        webhook["name"]: webhook for path in documents for webhook in documents[path]["webhooks"]
    }


SELECTORS = """
admission:
  namespaceSelector: {matchLabels: {team: a}, matchExpressions: [{key: env, operator: Exists}]}
  objectSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}]}
"""


def test_configured_selectors_are_added() -> None:
    documents = Registration("holdfast", lambda _path: {}).configurations(make_profiles(SELECTORS))

    for name, webhook in webhooks(documents).items():
        excluded, env = webhook["namespaceSelector"]["matchExpressions"]
        assert excluded["operator"] == "NotIn"
        assert env == {"key": "env", "operator": "Exists"}
        assert webhook["namespaceSelector"]["matchLabels"] == {"team": "a"}
        assert ("objectSelector" in webhook) == ("pods" in name.split("."))
    assert webhooks(documents)["pods.holdfast.dev"]["objectSelector"] == {
        "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]
    }


def test_configurations_are_keyed_by_path(found: dict[str, Any]) -> None:
    assert list(found) == [MUTATING, VALIDATING]
    assert [document["kind"] for document in found.values()] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    assert {"holdfast"} == {document["metadata"]["name"] for document in found.values()}


def test_pod_webhook_is_called_on_creation(found: dict[str, Any]) -> None:
    webhook, _ = found[MUTATING]["webhooks"]

    assert {
        "name": "pods.holdfast.dev",
        "clientConfig": {
            "url": "https://10.0.0.1:8443/mutate",
            "caBundle": base64.b64encode(b"PEM").decode(),
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "matchConditions": [
            {
                "name": "uses-holdfast",
                "expression": conditions.create_condition(make_profiles()),
            }
        ],
        "namespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["kube-system"],
                }
            ]
        },
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": 3,
        "admissionReviewVersions": ["v1"],
    } == webhook


def test_vm_webhook_restores_erased_records_on_update(found: dict[str, Any]) -> None:
    webhook = webhooks(found)["vms.holdfast.dev"]
    rule = {
        "apiGroups": ["kubevirt.io"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["virtualmachines"],
        "scope": "Namespaced",
    }

    assert webhook["rules"] == [rule]
    assert webhook["clientConfig"]["url"] == "https://10.0.0.1:8443/mutate"


def test_vm_webhook_is_absent_without_the_sticky_plugin() -> None:
    profiles = make_profiles("profiles: [{plugins: {disabled: [{name: sticky}]}}]")
    documents = Registration("holdfast", lambda _path: {}).configurations(profiles)
    assert [webhook["name"] for webhook in documents[MUTATING]["webhooks"]] == ["pods.holdfast.dev"]


def test_only_pods_and_records_fail_closed(found: dict[str, Any]) -> None:
    policies = {name: webhook["failurePolicy"] for name, webhook in webhooks(found).items()}
    closed = {name for name, policy in policies.items() if policy == "Fail"}
    assert closed == {"pods.holdfast.dev", "validate.pods.holdfast.dev", "vms.holdfast.dev"}
    assert set(policies.values()) == {"Fail", "Ignore"}


def test_webhooks_are_called_only_for_pods_and_vms_with_requests(found: dict[str, Any]) -> None:
    profiles = make_profiles()
    created = conditions.validate_condition(profiles)
    updated = conditions.update_condition(profiles)
    expected = {
        "vms.holdfast.dev": conditions.restore_condition(profiles),
        "validate.pods.holdfast.dev": f"request.operation == 'CREATE' ? ({created}) : ({updated})",
        "keys.pods.holdfast.dev": StrayKeys(profiles).match("object"),
    }
    for name, expression in expected.items():
        condition = {"name": "uses-holdfast", "expression": expression}
        assert webhooks(found)[name]["matchConditions"] == [condition]
    assert webhooks(found)["validate.pods.holdfast.dev"]["rules"][0]["operations"] == [
        "CREATE",
        "UPDATE",
    ]


@pytest.mark.parametrize(
    ("name", "templates", "resources"),
    [
        (
            "templates",
            ["template"],
            {
                "apps": ["deployments", "statefulsets", "replicasets", "daemonsets"],
                "batch": ["jobs"],
                "": ["replicationcontrollers"],
                "kubevirt.io": ["virtualmachines", "virtualmachineinstancereplicasets"],
            },
        ),
        ("cron-templates", ["jobTemplate.spec.template"], {"batch": ["cronjobs"]}),
        (
            "pool-templates",
            ["virtualMachineTemplate.spec.template"],
            {"pool.kubevirt.io": ["virtualmachinepools"]},
        ),
        (
            "worker-templates",
            ["leaderWorkerTemplate.workerTemplate", "leaderWorkerTemplate.leaderTemplate"],
            {"leaderworkerset.x-k8s.io": ["leaderworkersets"]},
        ),
        (
            "job-set-templates",
            ["replicatedJobs[].template.spec.template"],
            {"jobset.x-k8s.io": ["jobsets"]},
        ),
    ],
)
def test_template_webhooks(
    found: dict[str, Any], name: str, templates: list[str], resources: dict[str, list[str]]
) -> None:
    webhook = webhooks(found)[f"{name}.holdfast.dev"]
    rules = {rule["apiGroups"][0]: rule["resources"] for rule in webhook["rules"]}
    paths = [f"object.spec.{template}" for template in templates]
    condition = conditions.template_condition(make_profiles(), *paths)

    assert resources == rules
    assert condition in webhook["matchConditions"][0]["expression"]


def test_configured_key_is_escaped_in_all_conditions() -> None:
    class OddKey(Scripted):
        keys = ("a'b\\c",)

    documents = Registration("x", by_url("h:1", b"")).configurations(profiles_of(OddKey()))

    for name, webhook in webhooks(documents).items():
        (condition,) = webhook["matchConditions"]
        if name != "keys.pods.holdfast.dev":  # it has only keys under holdfast.dev/
            assert "'a\\'b\\\\c'" in condition["expression"]
        assert "'a'b" not in condition["expression"]


def test_excluded_namespaces_and_timeouts_apply_to_all_webhooks(found: dict[str, Any]) -> None:
    registration = Registration("x", by_url("h:1", b""), excluded_namespaces=("a", "b"))

    for webhook in webhooks(registration.configurations(make_profiles())).values():
        (expression,) = webhook["namespaceSelector"]["matchExpressions"]
        assert expression["values"] == ["a", "b"]
    for webhook in webhooks(found).values():
        assert webhook["timeoutSeconds"] == configurations.TIMEOUT_SECONDS
        assert webhook["sideEffects"] == "None"
