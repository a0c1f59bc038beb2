"""The chart's values: the source of values.yaml, its JSON Schema and the table in the reference."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from docs.tables import table
from holdfast.webhook import plugins
from holdfast.webhook.config import schema


class Value(NamedTuple):
    """A value of the chart: its path, JSON Schema, default and meaning."""

    path: str
    schema: Mapping[str, Any]
    default: Any
    meaning: str


_ON, _OFF = (({"type": "boolean"}, state) for state in (True, False))
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_OBJECT = {"type": "object"}
_LIST = {"type": "array", "items": _OBJECT}
_NAMES = {"type": "array", "items": _TEXT}


def _configuration() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of `config`, and its definitions; third-party plugins are valid."""
    document = schema.schema(plugins.registry(()))
    parts = document.pop("$defs")
    del parts["PluginConfig"]["properties"]["name"]["enum"]
    for field in parts["PluginSet"]["properties"].values():
        del field["items"]["properties"]
    return {key: document[key] for key in ("type", "properties", "additionalProperties")}, parts


_CONFIG, _PARTS = _configuration()

VALUES = (
    Value("image.repository", _TEXT, "holdfast", "The image, without tag."),
    Value(
        "image.tag",
        _TEXT,
        "",
        "Its tag; by default the chart's `appVersion`. A released chart names its image by digest "
        "instead, unless you set a tag.",
    ),
    Value(
        "image.digest",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        "",
        "Its digest, instead of the tag.",
    ),
    Value(
        "image.pullPolicy",
        {"enum": ["Always", "IfNotPresent", "Never"]},
        "IfNotPresent",
        "When nodes pull the image.",
    ),
    Value("imagePullSecrets", _LIST, [], "Secrets for the registry, such as `[{name: registry}]`."),
    Value(
        "replicas.webhook",
        {"type": "integer", "minimum": 0},
        0,
        "Admission servers; 0 means 2, or 3 with `highAvailability`.",
    ),
    Value("replicas.controller", _COUNT, 2, "Controllers. One leads, the others stand by."),
    Value(
        "resources.webhook",
        _OBJECT,
        {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "Resources of an admission server.",
    ),
    Value(
        "resources.controller",
        _OBJECT,
        {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}},
        "Resources of a controller.",
    ),
    Value(
        "config",
        _CONFIG,
        {},
        "The [configuration](configuration.md): a whole `HoldfastConfiguration`, without "
        "`apiVersion` and `kind`. Helm rejects unknown fields and invalid values; a change rolls "
        "out both Deployments.",
    ),
    Value(
        "after.rules",
        _LIST,
        [],
        "Further rules of the role for `holdfast.dev/after`, for kinds that `config` adds: "
        "`holdfast rbac` prints them.",
    ),
    Value("kubevirt.enabled", *_OFF, "Whether VMs are sticky."),
    Value(
        "certManager.enabled",
        *_OFF,
        "Whether cert-manager issues the certificates. The controller gets no access to Secrets.",
    ),
    Value(
        "clientCA.enabled",
        *_OFF,
        "Whether the webhook accepts only clients with a certificate.",
    ),
    Value(
        "clientCA.configMap",
        _TEXT,
        "holdfast-client-ca",
        "The ConfigMap with their CA, as key `ca.crt`.",
    ),
    Value(
        "clientCA.names",
        _NAMES,
        [],
        "Names, of which a client's certificate must have one. Required if the CA also signs "
        "other certificates, as the cluster's does.",
    ),
    Value("guard.enabled", *_ON, "Whether the admission policies are installed."),
    Value(
        "guard.extraKeys",
        _NAMES,
        [],
        "Annotation keys of third-party plugins that the guard protects.",
    ),
    Value("monitoring.podMonitor", *_OFF, "Adds PodMonitors."),
    Value("monitoring.rules", *_OFF, "Adds alerts as a PrometheusRule."),
    Value(
        "monitoring.runbooks",
        _TEXT,
        "https://holdfast.example.com",
        "The address of the documentation, for the links in alerts.",
    ),
    Value(
        "monitoring.dashboard",
        *_OFF,
        "Adds a ConfigMap with the dashboard, which Grafana's sidecar finds.",
    ),
    Value(
        "highAvailability",
        *_OFF,
        "Three admission servers, spread over zones, with the priority of cluster components.",
    ),
    Value(
        "statusPort",
        {"type": "integer", "minimum": 0, "maximum": 65535},
        0,
        "The port of the controller's [status page]"
        "(../how-to/inspect-and-release.md#open-the-status-page) on 127.0.0.1; 0 means off.",
    ),
    Value("priorityClassName", _TEXT, "", "The priority class of all pods."),
    Value("nodeSelector", _OBJECT, {"kubernetes.io/os": "linux"}, "The node selector of all pods."),
    Value("tolerations", _LIST, [], "The tolerations of all pods."),
    Value("affinity", _OBJECT, {}, "The affinity of all pods."),
    Value(
        "hostNetwork",
        *_OFF,
        "Whether the webhook uses its nodes' network, for API servers that cannot reach pods.",
    ),
    Value("port", _PORT, 8443, "The webhook's port."),
    Value("networkPolicy.enabled", *_ON, "Adds NetworkPolicies."),
    Value(
        "networkPolicy.apiServerPorts",
        {"type": "array", "items": _PORT, "minItems": 1},
        [443, 6443],
        "Ports of the API servers.",
    ),
    Value(
        "openshift",
        *_OFF,
        "Leaves out user and group IDs, which OpenShift assigns.",
    ),
    Value(
        "callLast",
        *_OFF,
        "Names the webhook configurations `zz-holdfast`, so that they are called last.",
    ),
    Value(
        "uninstall.enabled",
        *_ON,
        "Whether `helm uninstall` first frees pods of gates and finalizers. Without it, held pods "
        "stay held.",
    ),
    Value(
        "uninstall.release",
        {"enum": ["wait", "now"]},
        "wait",
        "Whether `helm uninstall` waits until held pods are due, or releases them now.",
    ),
)


def values_yaml(overrides: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return values.yaml with the meaning of each value; `overrides` replaces defaults by path."""
    lines = [
        "# The values of the chart, with their defaults. Generated by `python -m release.chart`."
    ]
    previous: list[str] = []
    for value in VALUES:
        *parents, name = value.path.split(".")
        for depth, parent in enumerate(parents):
            if previous[: depth + 1] != parents[: depth + 1]:
                lines.append("  " * depth + f"{parent}:")
        previous = parents
        indent = "  " * len(parents)
        lines += [] if parents else [""]
        lines += [f"{indent}# {line}" for line in textwrap.wrap(_plain(value.meaning), 96)]
        lines.append(f"{indent}{name}: {json.dumps(overrides.get(value.path, value.default))}")
    return "\n".join(lines) + "\n"


def schema_json() -> str:
    """Return values.schema.json, with which helm validates values; it rejects unknown ones."""
    root: dict[str, Any] = _node()
    root = {"$schema": schema.DIALECT, **root}
    for value in VALUES:
        *parents, name = value.path.split(".")
        node = root
        for parent in parents:
            node = node["properties"].setdefault(parent, _node())
        node["properties"][name] = {"description": _plain(value.meaning), **value.schema}
    root["properties"]["global"] = {"type": "object"}  # set if this is a subchart
    root["$defs"] = _PARTS
    return json.dumps(root, indent=2) + "\n"


def _plain(meaning: str) -> str:
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", meaning)


def _node() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def values_table() -> str:
    """Return the Markdown table of values for the reference."""
    return table(
        ("value", "default", "meaning"),
        [(f"`{value.path}`", f"`{json.dumps(value.default)}`", value.meaning) for value in VALUES],
    )
