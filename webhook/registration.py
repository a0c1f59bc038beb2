"""The webhook configurations that make the API server ask Holdfast. Pure: dictionaries out.

Everything that decides who is asked comes from the plugins (`match`, `keys`), so a pod that asks
for nothing is never sent, costs nothing, and cannot be hurt by an outage.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webhook import pipeline as framework
from webhook.pipeline import Pipeline

GROUP = "admissionregistration.k8s.io"
TIMEOUT_SECONDS = 3
"""The time-outs of all webhooks on one request add up, within 30 s."""
EXCLUDED_NAMESPACES = ("kube-system",)
"""A webhook that can stop its own cluster's recovery is the classic outage."""

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
        asks = framework.match(pipeline)
        changed = framework.changed(pipeline)
        mutating = self._webhook("pods", "/mutate", ["CREATE"], asks)
        mutating["reinvocationPolicy"] = "IfNeeded"
        validating = self._webhook(
            "validate.pods",
            "/validate",
            ["CREATE", "UPDATE"],
            f"request.operation == 'CREATE' ? ({asks}) : ({changed})",
        )
        return {
            path("mutating", self.name): self._object("MutatingWebhookConfiguration", mutating),
            path("validating", self.name): self._object(
                "ValidatingWebhookConfiguration", validating
            ),
        }

    def _object(self, kind: str, webhook: Configuration) -> Configuration:
        return {
            "apiVersion": f"{GROUP}/v1",
            "kind": kind,
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/name": "holdfast"}},
            "webhooks": [webhook],
        }

    def _webhook(
        self, name: str, url_path: str, operations: list[str], condition: str
    ) -> Configuration:
        return {
            "name": f"{name}.holdfast.dev",
            "clientConfig": self.client_config(url_path),
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": operations,
                    "resources": ["pods"],
                    "scope": "Namespaced",
                }
            ],
            "matchConditions": [{"name": "asks-for-something", "expression": condition}],
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": list(self.excluded_namespaces),
                    }
                ]
            },
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "admissionReviewVersions": ["v1"],
        }


def path(kind: str, name: str) -> str:
    """Make the API path of a `mutating` or `validating` configuration."""
    return f"/apis/{GROUP}/v1/{kind}webhookconfigurations/{name}"


def by_url(address: str, ca: bytes) -> Callable[[str], Mapping[str, Any]]:
    """Reach a server at `host:port`, whose certificate this CA (PEM) has issued."""
    bundle = base64.b64encode(ca).decode()
    return lambda url_path: {"url": f"https://{address}{url_path}", "caBundle": bundle}
