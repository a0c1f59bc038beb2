"""Which VMs are sticky, and which node is recorded for them."""

from __future__ import annotations

from typing import Literal

from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Args
from holdfast.webhook.model.kubevirt import (
    STICKY,
    STICKY_NODE,
    STICKY_NODE_UID,
    VirtualMachine,
)


class StickyArgs(Args, frozen=True):
    """Arguments of the sticky plugin."""

    select: Literal["all", "annotated"] = "all"
    """Which VMs are sticky: all without `holdfast.dev/sticky: "false"`, or only those with
    `"true"`."""
    node_annotation: arg_types.Key = STICKY_NODE
    """The VM's annotation that records its node."""
    affinity: Literal["required", "preferred"] = "required"
    """Whether the VM waits for its node, or starts elsewhere if necessary."""
    on_migration: Literal["follow", "keep"] = "follow"
    """Whether the record follows a successful live migration."""
    namespaces: tuple[arg_types.Namespace, ...] = ()
    """The namespaces whose VMs are sticky; all if empty."""
    account: arg_types.NotEmpty = "auto"
    """The account with which KubeVirt's virt-controller creates pods. `auto` stands for
    `kubevirt-controller` in the namespace of the KubeVirt object."""


def recorded_node(vm: VirtualMachine, args: StickyArgs) -> str:
    """Return the node that a VM has to return to; empty if none is recorded.

    A record with another VM's UID was copied by a clone, and is ignored. A record without a UID
    was written by a person.
    """
    uid = vm.annotations.get(STICKY_NODE_UID, "")
    return vm.annotations.get(args.node_annotation, "") if uid in {"", vm.metadata.uid} else ""


def is_sticky(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Return whether a VM has to return to its node."""
    if args.namespaces and vm.metadata.namespace not in args.namespaces:
        return False
    chosen = vm.annotations.get(STICKY, "")
    return chosen == "true" if args.select == "annotated" else chosen != "false"
