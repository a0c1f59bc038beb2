"""Mutations that keep JSON valid; changing the bytes of a review mostly breaks its syntax."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.annotations import (
    DELAY_KEYS,
    HELD_ANNOTATION,
    JITTER,
    NOT_BEFORE,
    PROFILE_ANNOTATION,
)
from tests.support.delay_values import DELAYS, INSTANTS
from tests.support.hostile import EVIL
from tests.support.mistakes import places

Mutate = Callable[[bytes, int], bytes]
"""The fuzzer's mutation of some bytes, and the maximum size of the result."""

BYTES_ALONE = 0.2
"""The share of mutations that change bytes and may break the JSON."""
LENGTHENED = 0.05
"""The share of changes that lengthen a string or a list, up to the maximum input size."""
WORDS: tuple[str, ...] = (
    *(row.value for row in (*DELAYS, *INSTANTS) if len(row.value) < 100),
    *("CREATE", "UPDATE", "Pod", "Deployment", "CronJob", "VirtualMachine", "apps", "batch"),
    *("delay", *DELAY_KEYS, NOT_BEFORE, JITTER, HELD_ANNOTATION, PROFILE_ANNOTATION),
    *("holdfast.dev/delay", "holdfast.dev/sticky", "holdfast.dev/placed", "type", "space@1"),
    *(
        kubevirt.STICKY,
        kubevirt.STICKY_NODE,
        kubevirt.STICKY_NODE_UID,
        kubevirt.MIGRATION_JOB,
        kubevirt.VM,
        kubevirt.VMI,
    ),
    *(
        kubevirt.CONTROLLER_ACCOUNT,
        kubevirt.EPHEMERAL_PROVISIONING,
        "kubevirt.io/v1",
        kubevirt.GROUP,
    ),
    *("annotations", "labels", "ownerReferences", "finalizers", "schedulingGates", "nodeName"),
    *("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "template"),
    *("nodeSelectorTerms", "matchExpressions", "matchFields", "nodeSelector", "tolerations"),
    *("In", "NotIn", "Exists", "Gt", "zone", "role", "edge", "other", "*", "../x", EVIL, ""),
    *("profiles", "plugins", "enabled", "disabled", "pluginConfig", "name", "args", "rules"),
    *("sticky", "placement", "when", "require", "prefer", "equals", "maxDelay", "onInvalid"),
    *(
        "clusters",
        "users",
        "contexts",
        "current-context",
        "certificate-authority-data",
        "proxy-url",
    ),
    *(
        "client-certificate-data",
        "client-key-data",
        "token",
        "tokenFile",
        "tls-server-name",
        "exec",
    ),
)
ODD: tuple[Any, ...] = (None, True, False, 0, -1, 1.5, 2**63, 2**64, [], {}, [None], {"": {}})


def mutate_json(data: bytes, max_size: int, seed: int, mutate: Mutate) -> bytes:
    """Return a JSON document with one to three changes.

    Mutates bytes instead with a probability of `BYTES_ALONE`, and if the data is not JSON or the
    result is too long.
    """
    chance = random.Random(seed)
    if chance.random() < BYTES_ALONE:
        return mutate(data, max_size)
    try:
        document = json.loads(data)
        for _ in range(chance.randint(1, 3)):
            _change(document, chance, mutate, max_size)
        content = json.dumps(document, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return mutate(data, max_size)
    return content if len(content) <= max_size else mutate(data, max_size)


def _change(document: Any, chance: random.Random, mutate: Mutate, max_size: int) -> None:
    locations = list(places(document)) if isinstance(document, dict | list) else []
    if not locations:
        return
    container, key = chance.choice(locations)
    action = chance.random()
    if action < LENGTHENED:
        container[key] = _longer(container[key], chance, max_size)
    elif action < 0.5:
        container[key] = _other(container[key], chance, mutate)
    elif action < 0.6:
        del container[key]
    elif action < 0.75:
        source, name = chance.choice(locations)
        if name in source if isinstance(source, dict) else name < len(source):
            container[key] = copy.deepcopy(source[name])
    elif isinstance(container, dict):
        container[chance.choice(WORDS)] = _new(chance)
    else:
        container.insert(key, _new(chance))


def _longer(value: Any, chance: random.Random, max_size: int) -> Any:
    """Return a string or a list repeated, up to the maximum input size.

    The items of a list are copied: a shared item would be lengthened in all places at once.
    """
    if not value or not isinstance(value, str | list):
        return value
    limit = max_size // len(json.dumps(value))
    times = min(2 ** chance.randint(1, max_size.bit_length()), max(limit, 1))
    if isinstance(value, str):
        return value * times
    return [copy.deepcopy(item) for _ in range(times) for item in value]


def _other(value: Any, chance: random.Random, mutate: Mutate) -> Any:
    if isinstance(value, str) and chance.random() < 0.5:
        return mutate(value.encode(errors="replace"), 80).decode(errors="replace")
    return _new(chance)


def _new(chance: random.Random) -> Any:
    return chance.choice(WORDS) if chance.random() < 0.8 else copy.deepcopy(chance.choice(ODD))
