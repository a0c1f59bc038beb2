"""A freeze annotation freezes its namespace, even with an invalid value."""

import pytest

from holdfast.webhook.model.annotations import NEVER_MS, Due
from holdfast.webhook.model.freezes import (
    FREEZE,
    FREEZE_UNTIL,
    OWN_NAMESPACE,
    Freeze,
    Freezes,
    extended,
    read_freeze,
)
from holdfast.webhook.model.objects import ApiObject, Metadata
from tests.support.builders import CREATED_MS, HOUR, instant

NOW = CREATED_MS
LATER = instant(NOW + HOUR)


def read(annotations: dict[str, str] | None, name: str = "shop") -> Freeze | None:
    return read_freeze(ApiObject(Metadata(name=name, annotations=annotations)))


FROZEN = [
    pytest.param({FREEZE: "incident 42"}, "namespace shop is frozen: incident 42", id="a reason"),
    pytest.param(
        {FREEZE: "x", FREEZE_UNTIL: "2026-03-01T14:00:00+01:00"},
        "namespace shop is frozen until 2026-03-01T13:00:00Z: x",
        id="an end",
    ),
    pytest.param({FREEZE: ""}, 'namespace shop is frozen: ""', id="no reason"),
    pytest.param(
        {FREEZE: "a\n\x1b[31mb"},
        r'namespace shop is frozen: "a\n\x1b[31mb"',
        id="control characters",
    ),
    pytest.param(
        {FREEZE: "x" * 250_000},
        f'namespace shop is frozen: "{"x" * 40}…" (250000 characters)',
        id="a long reason",
    ),
    pytest.param(
        {FREEZE: "x", FREEZE_UNTIL: "soon\n"},
        "namespace shop is frozen: x (it does not end: annotation holdfast.dev/freeze-until: "
        r'invalid value "soon\n": use an RFC 3339 time with an offset '
        '("2026-12-24T18:00:00+01:00"))',
        id="an invalid end",
    ),
    pytest.param(
        {FREEZE: "x", FREEZE_UNTIL: ""},
        "namespace shop is frozen: x (it does not end: annotation holdfast.dev/freeze-until: "
        'invalid value "": use an RFC 3339 time with an offset ("2026-12-24T18:00:00+01:00"))',
        id="an empty end",
    ),
]


@pytest.mark.parametrize(("annotations", "text"), FROZEN)
def test_namespace_is_frozen(annotations: dict[str, str], text: str) -> None:
    freeze = read(annotations)
    assert freeze is not None
    assert str(freeze) == text
    assert str(freeze).isprintable()
    assert Freezes([freeze]).of("shop", NOW) == freeze
    assert Freezes([freeze]).of("other", NOW) is None


@pytest.mark.parametrize("annotations", [None, {}, {FREEZE_UNTIL: LATER}, {"freeze": "x"}])
def test_namespace_is_not_frozen(annotations: dict[str, str] | None) -> None:
    assert read(annotations) is None


def test_freeze_ends_at_its_time() -> None:
    freeze = read({FREEZE: "x", FREEZE_UNTIL: LATER})
    assert freeze is not None
    freezes = Freezes([freeze])
    assert freezes.of("shop", NOW + HOUR - 1) == freeze
    assert freezes.of("shop", NOW + HOUR) is None
    assert (len(freezes.active(NOW)), freezes.active(NOW + HOUR)) == (1, [])


def test_freeze_of_holdfast_namespace_applies_to_all() -> None:
    cluster_freeze = read({FREEZE: "upgrade", FREEZE_UNTIL: LATER}, OWN_NAMESPACE)
    shop_freeze = read({FREEZE: "x"})
    assert cluster_freeze is not None
    assert shop_freeze is not None
    assert str(cluster_freeze) == "all namespaces are frozen until 2026-03-01T13:00:00Z: upgrade"
    freezes = Freezes([cluster_freeze, shop_freeze])
    assert freezes.of("other", NOW) == cluster_freeze
    assert freezes.of("shop", NOW) == shop_freeze
    assert freezes.of("other", NOW + HOUR) is None


def test_freeze_postpones_due_time_to_its_end() -> None:
    due = Due(NOW, "a problem", "a reason")
    hour_freeze = Freeze("shop", "x", NOW + HOUR)
    assert extended(due, None) == due
    assert extended(Due(NOW + HOUR), hour_freeze) == Due(NOW + HOUR)
    reason = "namespace shop is frozen until 2026-03-01T13:00:00Z: x"
    assert extended(due, hour_freeze) == Due(NOW + HOUR, "a problem", f"{reason}; a reason")
    assert extended(Due(NOW), Freeze("shop", "x")).at_ms == NEVER_MS
    for freeze in (hour_freeze, Freeze("shop", "x")):
        assert extended(Due(NEVER_MS), freeze) == Due(NEVER_MS, "", str(freeze))
