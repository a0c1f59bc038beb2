"""The webhook configurations that make the API server ask Holdfast. Pure: dictionaries out.

Everything that decides who is asked comes from the plugins (`match`, `keys`), so a pod that asks
for nothing is never sent, costs nothing, and cannot be hurt by an outage.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from webhook import conditions
from webhook.pipeline import Pipeline
from webhook.workloads import CRON_TEMPLATE, RESOURCES, Resource

GROUP = "admissionregistration.k8s.io"
TIMEOUT_SECONDS = 3
"""The time-outs of all webhooks on one request add up, within 30 s."""
EXCLUDED_NAMESPACES = ("kube-system",)
"""A webhook that can stop its own cluster's recovery is the classic outage."""

ASKS = "asks-for-something"
"""The condition by which pods that ask for nothing are not sent."""
NOT_YET = {"name": "not-yet", "expression": "false"}
"""A condition that keeps the API server from calling, until it has a caBundle."""

_PODS = (("", "pods"),)

Configuration = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Registration:
    """Under which name, and how, the API server reaches a server.

    `client_config` makes the `clientConfig` for a path: by URL or by Service.
    """

    name: str
    client_config: Callable[[str], Mapping[str, Any]]
    excluded_namespaces: tuple[str, ...] = EXCLUDED_NAMESPACES

    def configurations(self, pipeline: Pipeline) -> dict[str, Configuration]:
        """Make both configurations, by their resource's API path."""
        validating = [self._pods(pipeline)]
        for template, resources in _by_template().items():
            validating.append(self._templates(pipeline, template, resources))
        return {
            path("mutating", self.name): self._object(
                "MutatingWebhookConfiguration", [self._mutating(pipeline)]
            ),
            path("validating", self.name): self._object(
                "ValidatingWebhookConfiguration", validating
            ),
        }

    def _mutating(self, pipeline: Pipeline) -> Configuration:
        """Hold and place pods as they are created: without us, pods that ask are refused."""
        asks = conditions.asks(pipeline)
        webhook = self._webhook("pods", "/mutate", ["CREATE"], _PODS, asks)
        return {**webhook, "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded"}

    def _pods(self, pipeline: Pipeline) -> Configuration:
        """Check pods as they are stored, those that the API server cannot judge by itself.

        On UPDATE, only where one of our keys changes.
        """
        condition = _by_operation(conditions.unsettled(pipeline), conditions.changes(pipeline))
        webhook = self._webhook(
            "validate.pods", "/validate", ["CREATE", "UPDATE"], _PODS, condition
        )
        return {**webhook, "failurePolicy": "Fail"}

    def _templates(
        self, pipeline: Pipeline, template: str, resources: list[Resource]
    ) -> Configuration:
        """Tell of a bad value where it is written; the pods themselves are checked again."""
        pod = f"{conditions.POD}.{template}"
        condition = _by_operation(conditions.asks(pipeline, pod), conditions.changes(pipeline, pod))
        kinds = [(resource.group, resource.name) for resource in resources]
        name = "cron-templates" if template == CRON_TEMPLATE else "templates"
        webhook = self._webhook(name, "/validate", ["CREATE", "UPDATE"], kinds, condition)
        return {**webhook, "failurePolicy": "Ignore"}

    def _object(self, kind: str, webhooks: list[Configuration]) -> Configuration:
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/name": "holdfast"}},
            "webhooks": webhooks,
        }

    def _webhook(
        self,
        name: str,
        url_path: str,
        operations: list[str],
        resources: Sequence[tuple[str, str]],
        condition: str,
    ) -> Configuration:
        groups = dict.fromkeys(group for group, _ in resources)
        return {
            "name": f"{name}.holdfast.dev",
            "clientConfig": self.client_config(url_path),
            "rules": [
                {
                    "apiGroups": [group],
                    "apiVersions": ["v1"],
                    "operations": operations,
                    "resources": [name for other, name in resources if other == group],
                    "scope": "Namespaced",
                }
                for group in groups
            ],
            "matchConditions": [{"name": ASKS, "expression": condition}],
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": list(self.excluded_namespaces),
                    }
                ]
            },
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "admissionReviewVersions": ["v1"],
        }


def digest(pipeline: Pipeline) -> str:
    """Tell in short whom a configuration has sent: equal where all rules and conditions are."""
    registration = Registration("holdfast", lambda url_path: {"path": url_path})
    text = msgspec.json.encode(registration.configurations(pipeline), order="sorted")
    return hashlib.sha256(text).hexdigest()


def names(pipeline: Pipeline) -> list[str]:
    """Name all webhooks of both configurations."""
    made = Registration("holdfast", lambda _path: {}).configurations(pipeline)
    return [webhook["name"] for one in made.values() for webhook in one["webhooks"]]


def _by_operation(on_create: str, on_update: str) -> str:
    return f"request.operation == 'CREATE' ? ({on_create}) : ({on_update})"


def _by_template() -> dict[str, list[Resource]]:
    """Gather the workloads whose template lies at the same path: one condition serves them all."""
    found: dict[str, list[Resource]] = {}
    for resource in RESOURCES:
        found.setdefault(resource.path, []).append(resource)
    return found


def path(kind: str, name: str) -> str:
    """Make the API path of a `mutating` or `validating` configuration."""
    return f"/apis/{GROUP}/v1/{kind}webhookconfigurations/{name}"


def by_url(address: str, ca: bytes) -> Callable[[str], Mapping[str, Any]]:
    """Reach a server at `host:port`, whose certificate this CA (PEM) has issued."""
    bundle = base64.b64encode(ca).decode()
    return lambda url_path: {"url": f"https://{address}{url_path}", "caBundle": bundle}


def by_service(namespace: str, name: str, ca: bytes | None) -> Callable[[str], Mapping[str, Any]]:
    """Reach a server by its Service, port 443; without a CA somebody else gives the caBundle."""
    bundle = {} if ca is None else {"caBundle": base64.b64encode(ca).decode()}

    def config(url_path: str) -> Mapping[str, Any]:
        service = {"namespace": namespace, "name": name, "path": url_path, "port": 443}
        return {"service": service, **bundle}

    return config
