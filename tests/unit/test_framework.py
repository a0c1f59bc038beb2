from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.fakes import FakeApi
from tests.unit.builders import make_delay, read_pod
from tests.unit.scripted import Holding, Scripted, Tightening
from webhook.errors import HandleError
from webhook.framework import (
    Args,
    Code,
    Handle,
    Holder,
    Plugin,
    Releasing,
    Result,
    error,
    refuse,
    skip,
    success,
)
from webhook.lookup import ClusterLookup
from webhook.objects import Names, Pod
from webhook.review import AddGate


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        pytest.param(success(), Result(Code.SUCCESS, (), "", ()), id="success"),
        pytest.param(
            success(AddGate("a"), AddGate("b"), warnings=["mind"]),
            Result(Code.SUCCESS, (AddGate("a"), AddGate("b")), "", ["mind"]),
            id="success with edits",
        ),
        pytest.param(skip(), Result(Code.SKIP, (), "", ()), id="skip"),
        pytest.param(refuse("no"), Result(Code.REFUSE, (), "no", ()), id="refuse"),
        pytest.param(error("ill"), Result(Code.ERROR, (), "ill", ()), id="error"),
    ],
)
def test_results(result: Result, expected: Result) -> None:
    assert expected == result


def test_arguments_are_strict_and_immutable() -> None:
    class Some(Args, frozen=True):
        long_name: int = 5

    assert msgspec.convert({"longName": 6}, Some) == Some(long_name=6)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"long_name": 6}, Some)
    with pytest.raises(AttributeError):
        Some().long_name = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("plugin", "holds", "has_a_say"),
    [
        pytest.param(Scripted(), False, False, id="neither"),
        pytest.param(Holding(), True, False, id="holds"),
        pytest.param(make_delay(), True, False, id="ours that holds"),
        pytest.param(Tightening(lambda _: skip()), False, True, id="has a say"),
    ],
)
def test_extension_points_are_known_by_their_methods(
    plugin: Plugin, holds: bool, has_a_say: bool
) -> None:
    assert (isinstance(plugin, Holder), isinstance(plugin, Releasing)) == (holds, has_a_say)


class NoPods:
    """Held pods, of which there are none."""

    def __iter__(self) -> Iterator[Names]:
        return iter(())

    def get(self, _key: Names) -> None:
        return None

    def release(self, _key: Names, _plugin: str) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lookup", "there are no lookups here; only a process that has a cluster has"),
        ("held", "held pods are known to the controller alone, not to the server"),
        ("tell", "Events are told by the controller alone, not by the server"),
    ],
)
def test_handle_that_is_not_connected(name: str, expected: str) -> None:
    with pytest.raises(HandleError) as caught:
        getattr(Handle(), name)

    assert expected == str(caught.value)


def test_handle_of_the_server_has_lookups_alone() -> None:
    handle, lookup = Handle(), ClusterLookup(FakeApi)
    handle.connect(lookup=lookup)

    assert handle.lookup is lookup
    for name in ("held", "tell"):
        with pytest.raises(HandleError):
            getattr(handle, name)


def test_handle_of_the_controller_has_all() -> None:
    def tell(pod: Pod, reason: str, note: str, *, warning: bool = False) -> None:
        told.append((pod.metadata.name, reason, note, warning))

    told: list[tuple[str, str, str, bool]] = []
    handle, held = Handle(), NoPods()
    handle.connect(lookup=ClusterLookup(FakeApi), held=held, tell=tell)
    handle.tell(read_pod(), "Mind", "this", warning=True)

    assert handle.held is held
    assert told == [("web-0", "Mind", "this", True)]
