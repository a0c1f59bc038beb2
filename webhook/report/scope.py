"""Whether pods are sent to Holdfast at all, as `admission` in the configuration selects them."""

from collections.abc import Mapping
from typing import Any

from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.registration.configurations import EXCLUDED_NAMESPACES

NAME_LABEL = "kubernetes.io/metadata.name"


def why_not_served(
    pod: Pod, namespace_labels: Mapping[str, str] | None, selectors: Selectors, own: str
) -> str:
    """Say why a pod is not sent to Holdfast; empty if it is, or if the labels are not known.

    `own` is Holdfast's namespace.
    """
    namespace = pod.metadata.namespace
    if namespace in {*EXCLUDED_NAMESPACES, own}:
        return f"Holdfast never serves namespace {namespace}"
    labels = None if namespace_labels is None else {NAME_LABEL: namespace, **namespace_labels}
    if labels is not None and not _matches(selectors.namespaces, labels):
        return f"namespace {namespace} has not the labels of admission.namespaceSelector"
    if not _matches(selectors.objects, pod.labels):
        return "the pod has not the labels of admission.objectSelector"
    return ""


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(one, labels) for one in selector.get("matchExpressions", ())
    )


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values", ())
    return {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[requirement["operator"]]
