from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.unit.builders import make_pipeline
from tests.unit.scripted import Scripted, pipeline_of
from webhook import conditions, registration
from webhook.registration import Registration, by_url

MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/holdfast"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/holdfast"


@pytest.fixture
def found() -> dict[str, Any]:
    return Registration("holdfast", by_url("10.0.0.1:8443", b"PEM")).configurations(make_pipeline())


def webhooks(found: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for path in found for one in found[path]["webhooks"]}


def test_both_configurations_by_their_path(found: dict[str, Any]) -> None:
    assert list(found) == [MUTATING, VALIDATING]
    assert [one["kind"] for one in found.values()] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    assert {"holdfast"} == {one["metadata"]["name"] for one in found.values()}


def test_pods_are_asked_about_when_they_are_created(found: dict[str, Any]) -> None:
    (webhook,) = found[MUTATING]["webhooks"]

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
            {"name": "asks-for-something", "expression": conditions.asks(make_pipeline())}
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


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("pods.holdfast.dev", "Fail"),
        ("validate.pods.holdfast.dev", "Fail"),
        ("templates.holdfast.dev", "Ignore"),
        ("cron-templates.holdfast.dev", "Ignore"),
    ],
)
def test_only_pods_fail_closed(found: dict[str, Any], name: str, policy: str) -> None:
    assert policy == webhooks(found)[name]["failurePolicy"]


def test_pods_are_validated_on_update_only_where_a_key_of_ours_changes(
    found: dict[str, Any],
) -> None:
    webhook = webhooks(found)["validate.pods.holdfast.dev"]
    pipeline = make_pipeline()

    assert webhook["rules"][0]["operations"] == ["CREATE", "UPDATE"]
    assert [
        (
            f"request.operation == 'CREATE' ? ({conditions.unsettled(pipeline)}) : "
            f"({conditions.changes(pipeline)})"
        )
    ] == [one["expression"] for one in webhook["matchConditions"]]


@pytest.mark.parametrize(
    ("name", "template", "resources"),
    [
        pytest.param(
            "templates.holdfast.dev",
            "object.spec.template",
            {
                "apps": ["deployments", "statefulsets", "replicasets", "daemonsets"],
                "batch": ["jobs"],
                "kubevirt.io": ["virtualmachines"],
            },
            id="templates",
        ),
        pytest.param(
            "cron-templates.holdfast.dev",
            "object.spec.jobTemplate.spec.template",
            {"batch": ["cronjobs"]},
            id="templates of CronJobs",
        ),
    ],
)
def test_templates(
    found: dict[str, Any], name: str, template: str, resources: dict[str, list[str]]
) -> None:
    webhook = webhooks(found)[name]
    rules = {rule["apiGroups"][0]: rule["resources"] for rule in webhook["rules"]}

    assert resources == rules
    assert (
        conditions.asks(make_pipeline(), template) in (webhook["matchConditions"][0]["expression"])
    )


def test_configured_key_is_escaped_wherever_it_stands() -> None:
    class Odd(Scripted):
        keys = ("a'b\\c",)

    found = Registration("x", by_url("h:1", b"")).configurations(pipeline_of(Odd()))

    for webhook in webhooks(found).values():
        (condition,) = webhook["matchConditions"]
        assert "'a\\'b\\\\c'" in condition["expression"]
        assert "'a'b" not in condition["expression"]


def test_excluded_namespaces_and_timeouts_hold_for_all(found: dict[str, Any]) -> None:
    other = Registration("x", by_url("h:1", b""), excluded_namespaces=("a", "b"))

    for webhook in webhooks(other.configurations(make_pipeline())).values():
        (expression,) = webhook["namespaceSelector"]["matchExpressions"]
        assert expression["values"] == ["a", "b"]
    for webhook in webhooks(found).values():
        assert webhook["timeoutSeconds"] == registration.TIMEOUT_SECONDS
        assert webhook["sideEffects"] == "None"


def test_names_are_unique_domain_names(found: dict[str, Any]) -> None:
    names = [one["name"] for path in found for one in found[path]["webhooks"]]

    assert len(names) == len(set(names))
    assert all(name.count(".") >= 2 for name in names)
