"""Resolve arguments such as `web-0`, `pod/web-0` and `deployment/web` to pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import Api, pod_path
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import ApiObject, Pod
from holdfast.webhook.model.paths import api_path

_Pod = TypeVar("_Pod", bound=Pod)

_POD = "pod"
_VMS = frozenset({"virtualmachine", "virtualmachineinstance"})
_TYPES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    _POD: ("v1", "pods", ("po",)),
    "deployment": ("apps/v1", "deployments", ("deploy",)),
    "statefulset": ("apps/v1", "statefulsets", ("sts",)),
    "replicaset": ("apps/v1", "replicasets", ("rs",)),
    "daemonset": ("apps/v1", "daemonsets", ("ds",)),
    "job": ("batch/v1", "jobs", ()),
    "replicationcontroller": ("v1", "replicationcontrollers", ("rc",)),
    "virtualmachine": (kubevirt.VERSION, "virtualmachines", ("vm", "vms")),
    "virtualmachineinstance": (kubevirt.VERSION, "virtualmachineinstances", ("vmi", "vmis")),
}
"""Each type's API version, plural and short names."""
_BY_NAME = {
    name: kind for kind, (_, plural, short) in _TYPES.items() for name in (kind, plural, *short)
}
_BETWEEN: Mapping[str, str] = {
    "deployment": "replicaset",
    "virtualmachine": "virtualmachineinstance",
}
"""The intermediate owner of an object's pods; other types control their pods directly."""
_OPERATORS = {"In": "in", "NotIn": "notin"}


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """An object named on the command line: a pod, or a controller of pods."""

    kind: str
    name: str

    @property
    def is_pod(self) -> bool:
        """Whether the target is a pod."""
        return self.kind == _POD

    @property
    def is_vm(self) -> bool:
        """Whether the target is a VM or its VMI, which have the same name."""
        return self.kind in _VMS

    @property
    def plural(self) -> str:
        """The plural resource name, as in kubectl get."""
        return _TYPES[self.kind][1]

    def path(self, namespace: str) -> str:
        """Return the object's API path, or the list path if the target has no name."""
        version, plural, _ = _TYPES[self.kind]
        return api_path(version, plural, namespace, self.name)

    def pods(self, api: Api, namespace: str, kind: type[_Pod]) -> list[_Pod]:
        """Return the target's pods, as objects of `kind`. Raises CommandError if it is missing."""
        if self.is_pod:
            named_pod = listing.one(api, pod_path(namespace, self.name), kind)
            return [named_pod or self._missing(api, namespace)]
        try:
            owner = listing.one(api, self.path(namespace), dict[str, Any])
            owner = owner or self._missing(api, namespace)
        except ApiStatusError as exc:
            if exc.status != 404:
                raise
            raise CommandError(
                f"this cluster has no {self.plural}; choose another --context"
            ) from None
        selector = kubevirt.LAUNCHERS if self.is_vm else _selector(owner["spec"]["selector"])
        query = {"labelSelector": selector}
        owners = {owner["metadata"]["uid"]}
        if owner_kind := _BETWEEN.get(self.kind):
            path = NamedTarget(owner_kind, "").path(namespace)
            name_query = {"fieldSelector": f"metadata.name={self.name}"}  # a VMI has its VM's name
            candidates = listing.objects(api, path, ApiObject, name_query if self.is_vm else query)
            owners = {
                candidate.metadata.uid
                for candidate in candidates
                if _controller(candidate) in owners
            }
        # labels are not enough: anyone who can create pods can set them
        pods = listing.objects(api, listing.pods_path(namespace), kind, query)
        return [pod for pod in pods if _controller(pod) in owners]

    def _missing(self, api: Api, namespace: str) -> NoReturn:
        """Raise CommandError, suggesting a workload of the same name or a kubectl command."""
        suggestion = self.is_pod and _workload_of_name(api, namespace, self.name)
        cure = (
            f"did you mean {suggestion}?"
            if suggestion
            else f"see kubectl get {self.plural} -n {namespace}"
        )
        raise CommandError(f"{self.kind} {namespace}/{self.name} not found; {cure}")


def _workload_of_name(api: Api, namespace: str, name: str) -> str:
    """Return the TYPE/NAME of a workload with this name; empty if none can be read."""
    for workload in (NamedTarget(kind, name) for kind in _TYPES if kind != _POD):
        with suppress(ApiStatusError):
            if listing.one(api, workload.path(namespace), msgspec.Raw) is not None:
                return f"{workload.kind}/{name}"
    return ""


def parse_all(texts: Sequence[str]) -> list[NamedTarget]:
    """Parse pod names and TYPE/NAME, or one TYPE followed by names. Raises CommandError."""
    kind, *names = texts
    if names and kind.lower().partition(".")[0] in _BY_NAME and "/" not in "".join(names):
        texts = [f"{kind}/{name}" for name in names]
    return [parse(text) for text in dict.fromkeys(texts)]


def parse(text: str) -> NamedTarget:
    """Parse a pod name or TYPE/NAME. Raises CommandError."""
    type_name, slash, name = text.rpartition("/")
    if not slash:
        return NamedTarget(_POD, text)
    kind = _BY_NAME.get(type_name.lower().partition(".")[0])
    if kind is None or not name:
        raise CommandError(
            f"{text}: give the name of a pod, or TYPE/NAME with one of the types "
            f"{', '.join(_TYPES)}"
        )
    return NamedTarget(kind, name)


def _controller(obj: ApiObject) -> str:
    """Return the UID of an object's controller; empty if it has none."""
    owners = obj.metadata.owner_references or ()
    return next((owner.uid for owner in owners if owner.controller), "")


def _selector(selector: Mapping[str, Any]) -> str:
    """Return a selector as a query; a ReplicationController's is a plain label map."""
    if not {"matchLabels", "matchExpressions"} & selector.keys():
        return ",".join(f"{key}={value}" for key, value in selector.items())
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for requirement in selector.get("matchExpressions") or ():
        operator, key = requirement["operator"], requirement["key"]
        if operator in _OPERATORS:
            parts.append(f"{key} {_OPERATORS[operator]} ({','.join(requirement['values'])})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return ",".join(parts)
