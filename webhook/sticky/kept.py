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


def instance(vmi: Instance) -> Instance:
    """Return a VMI with only the fields that decisions about it and its VM need."""
    status = vmi.status
    running = [
        transition
        for transition in status.phase_transition_timestamps or ()
        if transition.phase == "Running"
    ]
    state = status.migration_state
    return Instance(
        _metadata(vmi.metadata, kubevirt.vm_of(vmi)),
        _bounded(vmi.spec),
        msgspec.structs.replace(
            _bounded(status),
            phase_transition_timestamps=running[:1] or None,
            migration_state=None if state is None else _bounded(state),
        ),
    )


def pod(launcher: LauncherPod) -> LauncherPod:
    """Return a small pod unchanged, or a large pod with only the fields that decisions need.

    A reduced pod lacks the resourceVersion: it must be read again before it is written.
    """
    if len(_ENCODER.encode(launcher)) <= SMALL:
        return launcher
    metadata, reason = launcher.metadata, launcher.unschedulable
    return LauncherPod(
        _metadata(
            metadata,
            kubevirt.vmi_of(launcher),
            creation_timestamp=metadata.creation_timestamp,
            deletion_timestamp=metadata.deletion_timestamp,
            annotations=_texts(launcher.annotations, *_ANNOTATIONS),
            labels=_texts(launcher.labels, kubevirt.MIGRATION_JOB),
            finalizers=[kubevirt.STICKY] if launcher.has_finalizer else None,
        ),
        PodSpec(launcher.spec.scheduler_name, launcher.spec.node_name),
        PodStatus(launcher.status.phase, None if reason is None else [_bounded(reason)]),
    )


def _metadata(metadata: Metadata, owner: OwnerReference | None, **more: Any) -> Metadata:
    """Return only an object's identity and its owner, with `more` fields added."""
    owners = None if owner is None else [_bounded(owner)]
    return Metadata(
        metadata.name, "", metadata.namespace, metadata.uid, owner_references=owners, **more
    )


def _bounded(struct: Struct) -> Struct:
    """Return a copy of a struct with each string that is too long for a name emptied."""
    texts = ((name, getattr(struct, name)) for name in struct.__struct_fields__)
    return msgspec.structs.replace(
        struct,
        **{name: "" for name, text in texts if isinstance(text, str) and len(text) > _LONGEST},
    )


def _texts(source: Mapping[str, str], *keys: str) -> dict[str, str]:
    texts = {key: source[key] for key in keys if key in source}
    return {key: text if len(text) <= _LONGEST else "" for key, text in texts.items()}
