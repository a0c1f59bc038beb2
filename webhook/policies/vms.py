"""The policy that lets the controller change only its record's annotations in a VM. Pure.

A policy sees a VM after KubeVirt's mutating webhook. On every update, that webhook fills in
defaults and rewrites the whole spec in its API version (virtualmachines-mutator in virt-api's
source). A VM that an older KubeVirt stored therefore changes even if the request only writes an
annotation. The policy allows these defaults where a field was empty. Otherwise no record could be
written on such a VM, and it would never start again.
"""

from collections.abc import Iterator, Sequence

from holdfast.webhook.framework.cel import strings
from holdfast.webhook.model import kubevirt
from holdfast.webhook.policies import builder
from holdfast.webhook.policies.builder import Check

CONTROLLER_VMS = "holdfast-controller-vms"
FIXED_VM_FIELDS = ("metadata.labels", "metadata.ownerReferences", "metadata.finalizers")
"""Fields that an update can change besides annotations and spec; the status is a subresource."""

_VOLUMES = "dataVolumeTemplates"
_EMPTY_TIME = "creationTimestamp"
"""Go wrote this field as null into every template, until apimachinery 0.34 omitted it."""
_LEVELS = (
    ("spec", "", "spec"),
    ("template", "spec", "template"),
    ("meta", "template", "metadata"),
    ("inner", "template", "spec"),
    ("domain", "inner", "domain"),
    ("machine", "domain", "machine"),
)
"""The parts of a VM that are compared separately: name, parent, field."""


def vms_policy(keys: Sequence[str], installation: builder.InstallationNames) -> builder.Object:
    """Build the policy that lets the controller change only these annotations of a VM."""
    may_not = f"{installation.controller} may not change"
    return builder.make_policy(
        CONTROLLER_VMS,
        rule=builder.make_rule(
            kubevirt.GROUP, ["virtualmachines", "virtualmachines/*"], ["UPDATE"]
        ),
        condition=builder.by_controller(installation),
        variables=dict([*_parts("old", "oldObject"), *_parts("new", "object")]),
        checks=[
            Check(
                "!has(request.subResource) || request.subResource == ''",
                f"{may_not} a subresource of a VirtualMachine",
            ),
            Check(
                builder.entries_kept("annotations", f"key in {strings(keys)}"),
                f"{may_not} annotations of a VirtualMachine other than {' and '.join(keys)}",
            ),
            *builder.fixed(FIXED_VM_FIELDS, may_not),
            Check(
                f"{builder.equal('?spec')} || (\n" + "\n&& ".join(_spec_kept()) + ")",
                f"{may_not} spec",
            ),
        ],
    )


def _parts(version: str, owner: str) -> Iterator[tuple[str, str]]:
    for name, parent, field in _LEVELS:
        parent_path = f"variables.{version}_{parent}" if parent else owner
        yield f"{version}_{name}", builder.part(parent_path, field, empty="{}")
    yield f"{version}_volumes", builder.part(f"variables.{version}_spec", _VOLUMES, empty="[]")


def _spec_kept() -> Iterator[str]:
    """Yield tests of the spec, level by level, each without the parts tested separately."""
    yield _pair("spec", "template", _VOLUMES)
    yield _volumes_kept()
    yield _pair("template", "metadata", "spec")
    yield _pair("meta", _EMPTY_TIME)
    yield _pair("inner", "architecture", "domain")
    yield _filled("inner", "architecture")
    yield _pair("domain", "machine")
    yield _pair("machine", "type")
    yield _filled("machine", "type")


def _pair(name: str, *excluded_keys: str) -> str:
    return _alike(f"variables.old_{name}", f"variables.new_{name}", *excluded_keys)


def _alike(old: str, new: str, *excluded_keys: str) -> str:
    """Test that two mappings are equal, except for some keys."""
    key_list = strings(excluded_keys)
    return (
        f"{new}.all(key, key in {key_list}\n"
        f"  || (key in {old} && {new}[key] == {old}[key]))\n"
        f"&& {old}.all(key, key in {key_list} || key in {new})"
    )


def _filled(name: str, field: str) -> str:
    old_value, new_value = (
        f"variables.{version}_{name}.?{field}.orValue('')" for version in ("old", "new")
    )
    return f"({old_value} == '' || {old_value} == {new_value})"


def _volumes_kept() -> str:
    """Test that the volume templates are unchanged. Two equal ones must not replace two others."""
    old_metadata, new_metadata = (
        f"dyn({variable}).?metadata.orValue({{}})" for variable in ("was", "one")
    )
    is_alike = (
        f"{_alike('was', 'one', 'metadata')}\n&& {_alike(old_metadata, new_metadata, _EMPTY_TIME)}"
    )
    return (
        "(variables.new_volumes == variables.old_volumes\n"
        "|| variables.new_volumes.size() == variables.old_volumes.size()\n"
        f"&& variables.new_volumes.all(one, variables.old_volumes.exists(was,\n{is_alike}))\n"
        f"&& variables.old_volumes.all(was, variables.new_volumes.exists(one,\n{is_alike})))"
    )
