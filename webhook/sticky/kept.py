"""Reduces VMIs and their pods to the fields that the controller keeps. Pure.

A user can fill an object up to the API server's limit, with strings that would take many times as
much memory here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.kubevirt import Instance, LauncherPod
from holdfast.webhook.model.objects import ApiStruct, Metadata, OwnerReference, PodSpec, PodStatus

SMALL = 1 << 14
"""Maximum size in bytes of a pod that is kept in full. The node selector for a host-model CPU alone
takes 5,000."""
_LONGEST = 253
"""Maximum length of a name in characters. Longer strings are not kept."""
_ANNOTATIONS = (kubevirt.MIGRATION_NAME, kubevirt.EPHEMERAL_PROVISIONING)

Struct = TypeVar("Struct", bound=ApiStruct)
_ENCODER = msgspec.json.Encoder()


def instance(one: Instance) -> Instance:
    """Return a VMI with only the fields that decisions about it and its VM need."""
    status = one.status
    ran = [each for each in status.phase_transition_timestamps or () if each.phase == "Running"]
    state = status.migration_state
    return Instance(
        _metadata(one.metadata, kubevirt.vm_of(one)),
        _bounded(one.spec),
        msgspec.structs.replace(
            _bounded(status),
            phase_transition_timestamps=ran[:1] or None,
            migration_state=None if state is None else _bounded(state),
        ),
    )


def pod(one: LauncherPod) -> LauncherPod:
    """Return a small pod unchanged, or a large pod with only the fields that decisions need.

    A reduced pod lacks the resourceVersion: it must be read again before it is written.
    """
    if len(_ENCODER.encode(one)) <= SMALL:
        return one
    metadata, reason = one.metadata, one.unschedulable
    return LauncherPod(
        _metadata(
            metadata,
            kubevirt.vmi_of(one),
            creation_timestamp=metadata.creation_timestamp,
            deletion_timestamp=metadata.deletion_timestamp,
            annotations=_texts(one.annotations, *_ANNOTATIONS),
            labels=_texts(one.labels, kubevirt.MIGRATION_JOB),
            finalizers=[kubevirt.STICKY] if one.has_finalizer else None,
        ),
        PodSpec(one.spec.scheduler_name, one.spec.node_name),
        PodStatus(one.status.phase, None if reason is None else [_bounded(reason)]),
    )


def _metadata(known: Metadata, owner: OwnerReference | None, **more: Any) -> Metadata:
    """Return only an object's identity and its owner, with `more` fields added."""
    owners = None if owner is None else [_bounded(owner)]
    return Metadata(known.name, "", known.namespace, known.uid, owner_references=owners, **more)


def _bounded(one: Struct) -> Struct:
    """Return a copy of a struct with each string that is too long for a name emptied."""
    texts = ((name, getattr(one, name)) for name in one.__struct_fields__)
    return msgspec.structs.replace(
        one, **{name: "" for name, text in texts if isinstance(text, str) and len(text) > _LONGEST}
    )


def _texts(source: Mapping[str, str], *keys: str) -> dict[str, str]:
    found = {key: source[key] for key in keys if key in source}
    return {key: text if len(text) <= _LONGEST else "" for key, text in found.items()}
