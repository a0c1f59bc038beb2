"""The account of KubeVirt's virt-controller, which creates the pods of VMs.

KubeVirt's operator names the account `kubevirt-controller`, in the KubeVirt object's namespace. Any
namespace owner can create an account of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.webhook.errors import ApiStatusError, UnreachableError
from holdfast.webhook.framework import cel
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.kube import discovery
from holdfast.webhook.model import kubevirt, syntax
from holdfast.webhook.model.kubevirt import Instance, VirtualMachine
from holdfast.webhook.model.objects import OwnerReference

T = TypeVar("T", Instance, VirtualMachine)

AUTO = "auto"
"""The argument value that means the account in the KubeVirt object's namespace."""
_MAX_AGE, _MAX_AGE_IF_DIFFERENT = 60.0, 5.0
"""Seconds that a lookup is cached; fewer if the account differs from a pod's creator."""


class VirtController:
    """Resolves the account of virt-controller. Thread-safe."""

    def __init__(self, account: str, handle: Handle) -> None:
        self._account = account
        self._handle = handle

    def is_user(self, username: str) -> bool:
        """Return whether a user is virt-controller. Raises ClusterError if a lookup fails."""
        if self._account != AUTO:
            return username == self._account
        if not kubevirt.VIRT_CONTROLLER.fullmatch(username):
            return False
        return any(username == self.account(age) for age in (_MAX_AGE, _MAX_AGE_IF_DIFFERENT))

    def match(self) -> str:
        """Return a CEL expression that is true for requests of virt-controller.

        With `auto`, it also matches accounts of that name in other namespaces.
        """
        user = "request.userInfo.username"
        if self._account != AUTO:
            return f"{user} == {cel.string(self._account)}"
        return (
            f"{user}.startsWith('system:serviceaccount:') "
            f"&& {user}.endsWith({cel.string(f':{kubevirt.CONTROLLER}')})"
        )

    def account(self, max_age: float = _MAX_AGE) -> str:
        """Return the account, looked up at most `max_age` seconds ago. Raises ClusterError."""
        if self._account != AUTO:
            return self._account
        try:
            response = self._handle.lookup.get(kubevirt.INSTALLATIONS, max_age=max_age) or {}
        except ApiStatusError as exc:
            # A 404 may come from a proxy: check with discovery that the kind is not served.
            if exc.status != 404 or discovery.lists(self._read, "kubevirts"):
                raise
            response = {}
        # KubeVirt rejects a second object. If a user creates one anyway, the oldest counts.
        items = sorted(response.get("items") or (), key=_created)
        if not items:
            return kubevirt.CONTROLLER_ACCOUNT
        return kubevirt.controller_account(items[0]["metadata"]["namespace"])

    def _read(self, path: str, kind: Any) -> Any:
        """Return the object at an API path, converted to a type. Raises ClusterError."""
        response = self._handle.lookup.get(path, max_age=_MAX_AGE_IF_DIFFERENT)
        try:
            return msgspec.convert(response, kind)
        except msgspec.ValidationError as exc:
            raise UnreachableError(f"the response for {path} is not valid: {exc}") from exc


def read_owner(handle: Handle, shape: type[T], namespace: str, owner: OwnerReference) -> T | None:
    """Return a pod's VMI, or a VMI's VM, without the cache; None if its UID no longer exists.

    Raises ClusterError if the lookup fails.
    """
    path = kubevirt.vmi_path if owner.kind == kubevirt.VMI else kubevirt.vm_path
    # Owner references are user input: they must not lead to another API path.
    if not (syntax.is_namespace(namespace) and syntax.is_object_name(owner.name)):
        return None
    response = handle.lookup.get(path(namespace, owner.name))
    owner_object = None if response is None else msgspec.convert(response, shape)
    return owner_object if owner_object and owner_object.metadata.uid == owner.uid else None


def _created(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata["creationTimestamp"], metadata["namespace"]
