"""Webhook configurations, and changes of them that the controller may not make."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.webhook.registration.configurations import NOT_YET
from tests.e2e.namespace import Object

METADATA_NAME = "kubernetes.io/metadata.name"
SERVICE = {"service": {"namespace": "holdfast-system", "name": "holdfast-webhook", "path": "/x"}}


def rule(**changes: list[str]) -> Object:
    defaults = {"apiGroups": [""], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}
    return {**defaults, "apiVersions": ["v1"], **changes}


def all_but(*namespaces: str) -> Object:
    key = METADATA_NAME
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": list(namespaces)}]}


def configuration(
    kind: str,
    name: str = "holdfast",
    *,
    client: Object = SERVICE,
    rules: Sequence[Object] = (),
    namespaces: Object | None = None,
) -> Object:
    webhook = {
        "name": "pods.holdfast.dev",
        "clientConfig": client,
        "rules": list(rules) or [rule()],
        "namespaceSelector": EXCLUDING_SELECTOR if namespaces is None else namespaces,
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "matchConditions": [NOT_YET],  # so that stored configurations have no effect
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


EXCLUDED = ("kube-system", "holdfast-system")
EXCLUDING_SELECTOR = all_but(*EXCLUDED)
IN = {"key": "team", "operator": "In", "values": ["a", "b"]}
EXISTS = {"key": "tier", "operator": "Exists"}
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
OTHER_NAME = "may only write webhook configurations named holdfast"
OTHER_SERVICE = "may only register webhooks for the Service holdfast-system/holdfast-webhook"
EXPRESSIONS = "namespaceSelector.matchExpressions"
OTHER_RULES = "may only register webhooks for CREATE and UPDATE of pods and workloads"
OTHER_NAMESPACES = (
    "may only register webhooks that exclude the namespaces kube-system and holdfast-system"
)


def selecting(**changes: Any) -> Object:
    """Make Holdfast's selector, with a changed field."""
    return {"matchExpressions": [{**EXCLUDING_SELECTOR["matchExpressions"][0], **changes}]}


def and_also(key: str, *values: str, operator: str = "NotIn") -> Object:
    """Make Holdfast's selector, with another requirement."""
    (expression,) = EXCLUDING_SELECTOR["matchExpressions"]
    return {
        "matchExpressions": [expression, {"key": key, "operator": operator, "values": [*values]}]
    }


REJECTED_WEBHOOKS: Mapping[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "other"}, OTHER_NAME),
    "a url": ({"client": {"url": "https://evil.example.com/x"}}, OTHER_SERVICE),
    **{
        f"another {field}": (
            {"client": {"service": {**SERVICE["service"], key: "evil"}}},
            OTHER_SERVICE,
        )
        for field, key in (("namespace", "namespace"), ("service", "name"))
    },
    **{
        name: ({"rules": [rule(), extra_rule]}, OTHER_RULES)
        for name, extra_rule in {
            "secrets": rule(resources=["secrets"]),
            "every resource": rule(resources=["*"]),
            "a subresource": rule(resources=["pods/exec"]),
            "every group": rule(apiGroups=["*"]),
            "deletion": rule(operations=["DELETE"]),
            "every operation": rule(operations=["*"]),
        }.items()
    },
    **{
        name: ({"namespaces": selector}, OTHER_NAMESPACES)
        for name, selector in {
            "no namespace excluded": {},
            "kube-system not excluded": all_but("holdfast-system"),
            "holdfast-system not excluded": all_but("kube-system", "others"),
            "only the excluded namespaces": selecting(operator="In"),
            "another label key": selecting(key="team"),
        }.items()
    },
    **{
        name: ({"namespaces": selector}, f"may not add or change {field} of webhooks")
        for name, (selector, field) in {
            "no namespace selected": (
                and_also(METADATA_NAME, "nowhere", operator="In"),
                EXPRESSIONS,
            ),
            "another namespace excluded": (all_but(*EXCLUDED, "team-a"), EXPRESSIONS),
            "another namespace excluded separately": (
                and_also(METADATA_NAME, "team-a"),
                EXPRESSIONS,
            ),
            "labelled namespaces excluded": (and_also("team", "gke-a"), EXPRESSIONS),
            "only labelled namespaces": (
                {**EXCLUDING_SELECTOR, "matchLabels": {"team": "a"}},
                "namespaceSelector.matchLabels",
            ),
        }.items()
    },
}
