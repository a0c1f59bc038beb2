from __future__ import annotations

import logging
import threading

import pytest

from tests.fakes import FakeApi
from tests.unit.builders import make_pipeline
from tests.unit.scripted import Blocking, Scripted, pipeline_of
from webhook import wiring
from webhook.errors import StartError
from webhook.lookup import ClusterLookup
from webhook.profiles import Profile


class Looking(Blocking):
    """Looks around, and notes it."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.started_in: list[str] = []
        self.done = threading.Event()
        self._error = error

    def started(self) -> None:
        self.started_in.append(threading.current_thread().name)
        self.done.set()
        if self._error is not None:
            raise self._error


def refusing() -> FakeApi:
    raise StartError("no usable kubeconfig; name one")


def test_server_connects_where_a_plugin_may_block() -> None:
    cure = (
        "no usable kubeconfig; name one; or leave out what looks things up: --disable-plugin sticky"
    )
    with pytest.raises(StartError, match=cure):
        wiring.look_around(make_pipeline(), ClusterLookup(refusing))


def test_server_needs_no_credentials_where_none_may() -> None:
    wiring.look_around(pipeline_of(Scripted()), ClusterLookup(refusing))


def test_plugin_looks_around_once_and_in_a_thread() -> None:
    plugin = Looking()
    pipeline = pipeline_of(plugin)
    pipeline.profiles = {name: Profile(name, (plugin,)) for name in ("a", "b")}
    wiring.look_around(pipeline, ClusterLookup(FakeApi))
    assert plugin.done.wait(5)
    assert plugin.started_in == ["look-around"]


def test_plugin_that_cannot_look_around_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast.plugins")
    wiring.look_around(pipeline_of(Looking(OSError("no network"))), ClusterLookup(FakeApi))
    for thread in threading.enumerate():
        if thread.name == "look-around":
            thread.join(5)
    (record,) = caplog.records
    assert record.getMessage() == "plugin blocking could not look around: OSError: no network"
