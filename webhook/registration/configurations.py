"""Build the webhook configurations as dictionaries. Pure.

The match conditions come from the plugins (`match`, `keys`). The API server sends only pods that
use Holdfast, so others cost nothing, and an outage does not affect them.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.webhook.framework import cel, conditions
from holdfast.webhook.framework.profiles import Profiles, Selectors
from holdfast.webhook.framework.stray_keys import StrayKeys
from holdfast.webhook.model import workloads
from holdfast.webhook.model.workloads import RESOURCES, Resource

GROUP = "admissionregistration.k8s.io"
NAME = "holdfast"
"""The default name of both configurations."""
TIMEOUT_SECONDS = 3
"""The timeouts of all webhooks on a request add up; the API server's limit is 30 s."""
EXCLUDED_NAMESPACES = ("kube-system",)
"""A webhook must not be able to block the recovery of the cluster itself."""

MAX_EXPRESSION_CHARACTERS = 100_000
"""The API server's limit for a CEL expression (cel-go's `expressionSizeCodePointLimit`)."""
USES = "uses-holdfast"
"""The name of the condition that selects the pods that use Holdfast."""
NOT_YET = {"name": "not-yet", "expression": "false"}
"""A condition that disables a webhook until it has a caBundle."""

_TEMPLATE_NAMES = {
    workloads.TEMPLATE: "templates",
    workloads.CRON_TEMPLATE: "cron-templates",
    workloads.POOL_TEMPLATE: "pool-templates",
    workloads.WORKER_TEMPLATE: "worker-templates",
    workloads.JOB_SET_TEMPLATES: "job-set-templates",
}
_PODS = (("", "pods"),)
_BOTH = ["CREATE", "UPDATE"]
_MUTATING = ("pods", "vms")

Configuration = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Registration:
    """The name of the configurations, and how the API server reaches the webhook.

    `client_config` returns the `clientConfig` for a path: a URL or a Service.
    """

    name: str
    client_config: Callable[[str], Mapping[str, Any]]
    excluded_namespaces: tuple[str, ...] = EXCLUDED_NAMESPACES

    def configurations(self, profiles: Profiles) -> dict[str, Configuration]:
        """Return both configurations, keyed by API path."""
        templates = [self._templates(profiles, *group) for group in _by_templates().items()]
        webhooks = {
            "mutating": [self._mutating(profiles), *self._vms(profiles)],
            "validating": [self._pods(profiles), *self._keys(profiles), *templates],
        }
        return {
            path(kind, self.name): self._object(f"{kind.title()}WebhookConfiguration", entries)
            for kind, entries in webhooks.items()
        }

    def _mutating(self, profiles: Profiles) -> Configuration:
        """Return the webhook that holds and places pods at creation.

        If Holdfast is down, pods that use it are rejected.
        """
        condition = conditions.create_condition(profiles)
        # Only CREATE: a patch on UPDATE could make it impossible to change a stored pod.
        webhook = self._webhook("pods", ["CREATE"], _PODS, condition, profiles.selectors)
        # IfNeeded: another mutating webhook may change the pod after ours.
        return {**webhook, "reinvocationPolicy": "IfNeeded"}

    def _vms(self, profiles: Profiles) -> list[Configuration]:
        """Return the webhook that restores the records of VMs, if it is needed.

        If Holdfast is down, updates that erase a record are rejected.
        """
        condition = conditions.restore_condition(profiles)
        kinds = [(workloads.RESTORED.group, workloads.RESTORED.name)]
        selectors = Selectors(profiles.selectors.namespaces)
        webhook = self._webhook("vms", ["UPDATE"], kinds, condition, selectors)
        return [] if condition == "false" else [webhook]

    def _pods(self, profiles: Profiles) -> Configuration:
        """Return the webhook that validates pods that CEL cannot validate.

        On UPDATE, it is called only if one of our keys changes.
        """
        condition = conditions.by_operation(
            conditions.validate_condition(profiles), conditions.update_condition(profiles)
        )
        return self._webhook("validate.pods", _BOTH, _PODS, condition, profiles.selectors)

    def _keys(self, profiles: Profiles) -> list[Configuration]:
        """Return the webhook that warns about pods with unknown keys, if it is needed.

        These pods must not depend on Holdfast.
        """
        condition = StrayKeys(profiles).match(cel.POD)
        webhook = self._webhook("keys.pods", _BOTH, _PODS, condition, profiles.selectors)
        return [] if condition == "false" else [{**webhook, "failurePolicy": "Ignore"}]

    def _templates(
        self, profiles: Profiles, templates: Sequence[str], resources: list[Resource]
    ) -> Configuration:
        """Return the webhook that rejects invalid templates; their pods are validated again."""
        pods = [f"{cel.POD}.{template}" for template in templates]
        strays = StrayKeys(profiles)
        condition = conditions.any_of(
            [
                conditions.template_condition(profiles, *pods),
                *map(strays.match, pods),
                strays.match_workload(resource.kind for resource in resources),
            ]
        )
        kinds = [(resource.group, resource.name) for resource in resources]
        name, selectors = _TEMPLATE_NAMES[templates[0]], Selectors(profiles.selectors.namespaces)
        webhook = self._webhook(name, _BOTH, kinds, condition, selectors)
        # Workloads must not depend on Holdfast: their pods are validated at creation.
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
        operations: list[str],
        resources: Sequence[tuple[str, str]],
        condition: str,
        selectors: Selectors,
    ) -> Configuration:
        excluded = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": list(self.excluded_namespaces),
        }
        groups = dict.fromkeys(group for group, _ in resources)
        return {
            "name": f"{name}.holdfast.dev",
            "clientConfig": self.client_config("/mutate" if name in _MUTATING else "/validate"),
            "rules": [
                {
                    "apiGroups": [group],
                    "apiVersions": ["*" if group in workloads.UNSTABLE else "v1"],
                    "operations": operations,
                    "resources": [
                        resource for api_group, resource in resources if api_group == group
                    ],
                    "scope": "Namespaced",
                }
                for group in groups
            ],
            "matchConditions": [{"name": USES, "expression": condition}],
            "namespaceSelector": {
                **selectors.namespaces,
                "matchExpressions": [excluded, *selectors.namespaces.get("matchExpressions", ())],
            },
            **({"objectSelector": selectors.objects} if selectors.objects else {}),
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            # The webhook writes nothing, so `--dry-run=server` and `kubectl diff` work.
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "admissionReviewVersions": ["v1"],
        }


def digest(profiles: Profiles) -> str:
    """Return a digest of all rules and conditions."""
    registration = Registration(NAME, lambda url_path: {"path": url_path})
    text = msgspec.json.encode(registration.configurations(profiles), order="sorted")
    return hashlib.sha256(text).hexdigest()


def expressions(profiles: Profiles) -> dict[str, str]:
    """Return the match conditions of all webhooks, keyed by webhook name."""
    configurations = Registration(NAME, lambda _path: {}).configurations(profiles)
    webhooks = [
        webhook
        for configuration in configurations.values()
        for webhook in configuration["webhooks"]
    ]
    return {webhook["name"]: webhook["matchConditions"][0]["expression"] for webhook in webhooks}


def _by_templates() -> dict[tuple[str, ...], list[Resource]]:
    """Return the workloads, grouped by template paths: each group shares one condition."""
    groups: dict[tuple[str, ...], list[Resource]] = {}
    for resource in RESOURCES:
        groups.setdefault(resource.paths, []).append(resource)
    return groups


def path(kind: str, name: str) -> str:
    """Return the API path of a `mutating` or `validating` configuration."""
    return f"/apis/{GROUP}/v1/{kind}webhookconfigurations/{name}"


def paths(name: str) -> list[str]:
    """Return the API paths of both configurations with a name."""
    return [path(kind, name) for kind in ("mutating", "validating")]


def by_url(address: str, ca: bytes) -> Callable[[str], Mapping[str, Any]]:
    """Return the `client_config` of a webhook that is reached at `host:port`.

    `ca` is the CA of its certificate (PEM).
    """
    bundle = base64.b64encode(ca).decode()
    return lambda url_path: {"url": f"https://{address}{url_path}", "caBundle": bundle}


def by_service(namespace: str, name: str, ca: bytes | None) -> Callable[[str], Mapping[str, Any]]:
    """Return the `client_config` of a webhook that is reached by its Service, on port 443.

    Without `ca`, cert-manager adds the caBundle.
    """
    bundle = {} if ca is None else {"caBundle": base64.b64encode(ca).decode()}

    def config(url_path: str) -> Mapping[str, Any]:
        service = {"namespace": namespace, "name": name, "path": url_path, "port": 443}
        return {"service": service, **bundle}

    return config
