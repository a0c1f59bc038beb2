"""The namespaces and pods that `admission` in the configuration selects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.webhook.framework import node_affinity
from holdfast.webhook.framework.profiles import NO_SELECTORS, Selectors
from holdfast.webhook.model.edits import Requirement
from holdfast.webhook.model.freezes import OWN_NAMESPACE
from holdfast.webhook.registration.configurations import EXCLUDED_NAMESPACES

NAME_LABEL = "kubernetes.io/metadata.name"

LabelsOf = Callable[[str], Mapping[str, str] | None]
"""Returns the labels of a namespace, or None if they are unknown."""


@dataclass(frozen=True, slots=True)
class AdmissionScope:
    """The namespaces and pods that are sent to Holdfast; `own` is Holdfast's namespace."""

    selectors: Selectors = NO_SELECTORS
    labels_of: LabelsOf = lambda _: None
    own: str = OWN_NAMESPACE

    def why_not_served(self, namespace: str, labels: Mapping[str, str] | None = None) -> str:
        """Return why a namespace, or a pod with these labels, is not served; empty if it is."""
        if namespace in {*EXCLUDED_NAMESPACES, self.own}:
            return f"Holdfast never serves namespace {namespace}"
        namespace_labels = self.labels_of(namespace) if self.selectors.namespaces else None
        if namespace_labels is not None and not _matches(
            self.selectors.namespaces, {NAME_LABEL: namespace, **namespace_labels}
        ):
            return f"namespace {namespace} does not match admission.namespaceSelector"
        if labels is not None and not _matches(self.selectors.objects, labels):
            return "the pod does not match admission.objectSelector"
        return ""


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    match_labels = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        node_affinity.meets(
            labels.get(expression["key"]),
            Requirement(
                expression["key"], expression["operator"], tuple(expression.get("values", ()))
            ),
        )
        for expression in selector.get("matchExpressions", ())
    )
