"""The policy over what the controller changes of a VM: the annotations of its record alone. Pure.

A policy sees a VM as KubeVirt's own mutating webhook has left it. At every update that fills in
what the VM lacks, and writes the whole spec anew as its version of the API has it
(virtualmachines-mutator in virt-api's source): a VM that an older KubeVirt stored comes out changed
though the request only wrote an annotation. What it fills in is therefore allowed, where nothing
stood there before; without that no record could be written on such a VM, and it would never start
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook import vms
from webhook.conditions import strings
from webhook.policy import (
    Check,
    Installation,
    Object,
    annotations_kept,
    by_controller,
    fixed,
    make_policy,
    make_rule,
)

CONTROLLER_VMS = "holdfast-controller-vms"
FIXED_VM_FIELDS = ("metadata.labels", "metadata.ownerReferences", "metadata.finalizers")
"""What an update can change of a VM, beyond its annotations and its spec; its status is a
subresource."""

_VOLUMES = "dataVolumeTemplates"
_EMPTY_TIME = "creationTimestamp"
"""A field that Go wrote as null into every template, until apimachinery 0.34 left it out."""
_LEVELS = (
    ("spec", "", "spec"),
    ("template", "spec", "template"),
    ("meta", "template", "metadata"),
    ("inner", "template", "spec"),
    ("domain", "inner", "domain"),
    ("machine", "domain", "machine"),
)
"""The parts of a VM that are compared apart: a name for each, what it is part of, its field."""


def vms_policy(keys: Sequence[str], where: Installation) -> Object:
    """Make the policy that bounds what the controller changes of a VM: these annotations alone."""
    may_not = f"{where.controller} may not change"
    return make_policy(
        CONTROLLER_VMS,
        rule=make_rule(vms.GROUP, ["virtualmachines", "virtualmachines/*"], ["UPDATE"]),
        condition=by_controller(where),
        variables=dict([*_parts("old", "oldObject"), *_parts("new", "object")]),
        checks=[
            Check(
                "!has(request.subResource) || request.subResource == ''",
                f"{may_not} a subresource of a VirtualMachine",
            ),
            Check(
                annotations_kept(f"key in {strings(keys)}"),
                f"{may_not} annotations of a VirtualMachine but {' and '.join(keys)}",
            ),
            *fixed(FIXED_VM_FIELDS, may_not),
            Check("\n&& ".join(_spec_kept()), f"{may_not} spec"),
        ],
    )


def _parts(version: str, owner: str) -> Iterator[tuple[str, str]]:
    """Name the parts of a VM as it was, or as it is to be."""
    for name, parent, field in _LEVELS:
        whole = f"variables.{version}_{parent}" if parent else owner
        yield f"{version}_{name}", _part(whole, field)
    yield f"{version}_volumes", _part(f"variables.{version}_spec", _VOLUMES, empty="[]")


def _part(whole: str, field: str, empty: str = "{}") -> str:
    """Give a field, or what is empty where it is absent or null; no schema narrows its type."""
    return (
        f"[dyn({whole}).?{field}.orValue(null)]\n"
        f"  .map(part, part == null ? dyn({empty}) : part)[0]"
    )


def _spec_kept() -> Iterator[str]:
    """Test a spec level by level, each without what stands for itself, or may be filled in."""
    yield _pair("spec", "template", _VOLUMES)
    yield _volumes_kept()
    yield _pair("template", "metadata", "spec")
    yield _pair("meta", _EMPTY_TIME)
    yield _pair("inner", "architecture", "domain")
    yield _filled("inner", "architecture")
    yield _pair("domain", "machine")
    yield _pair("machine", "type")
    yield _filled("machine", "type")


def _pair(name: str, *apart: str) -> str:
    return _alike(f"variables.old_{name}", f"variables.new_{name}", *apart)


def _alike(before: str, after: str, *apart: str) -> str:
    """Test that two mappings are the same but for some keys."""
    named = strings(apart)
    return (
        f"{after}.all(key, key in {named}\n"
        f"  || (key in {before} && {after}[key] == {before}[key]))\n"
        f"&& {before}.all(key, key in {named} || key in {after})"
    )


def _filled(name: str, field: str) -> str:
    """Test that a text is as it was, or was empty."""
    before, after = (f"variables.{at}_{name}.?{field}.orValue('')" for at in ("old", "new"))
    return f"({before} == '' || {before} == {after})"


def _volumes_kept() -> str:
    """Test that there are the same templates of volumes; no two of a VM are alike in all."""
    meta_was, meta_is = (f"dyn({one}).?metadata.orValue({{}})" for one in ("was", "one"))
    return (
        "variables.new_volumes.size() == variables.old_volumes.size()\n"
        "&& variables.new_volumes.all(one, variables.old_volumes.exists(was,\n"
        f"{_alike('was', 'one', 'metadata')}\n"
        f"&& {_alike(meta_was, meta_is, _EMPTY_TIME)}))"
    )
