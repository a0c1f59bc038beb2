"""Decides which VMs are sticky, and reads their recorded nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.plugin import Args
from holdfast.webhook.kube.patching import FIELD_MANAGER
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
    """Return the node to which a VM must return; empty if none is recorded.

    A record with another VM's UID was copied by a clone, and is ignored. A record without a UID
    was written by a person.
    """
    uid = vm.annotations.get(STICKY_NODE_UID, "")
    return vm.annotations.get(args.node_annotation, "") if uid in {"", vm.metadata.uid} else ""


def is_own_record(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Return whether Holdfast is the only field manager of the record."""
    writers = vm.writers_of(args.node_annotation)
    return {writer.manager for writer in writers} == {FIELD_MANAGER}


def is_set_by_others(
    vm: VirtualMachine, args: StickyArgs, *, since: datetime | None = None
) -> bool:
    """Return whether another person or program wrote the record, at or after `since`.

    A record that the webhook restored does not have a field manager, and does not count.
    """
    if not vm.writers_of(args.node_annotation) or is_own_record(vm, args):
        return False
    written_at = vm.written_at(args.node_annotation)
    return written_at is None or since is None or written_at >= since


def is_sticky(vm: VirtualMachine, args: StickyArgs) -> bool:
    """Return whether a VM must return to its node."""
    if args.namespaces and vm.metadata.namespace not in args.namespaces:
        return False
    value = vm.annotations.get(STICKY, "")
    return value == "true" if args.select == "annotated" else value != "false"
