import logging
import threading

import pytest

from holdfast.webhook.errors import StartError
from holdfast.webhook.framework.profiles import Profile, Profiles
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.runtime import pipelines
from tests.support.builders import make_profiles
from tests.support.fakes import FakeApi
from tests.support.scripted import Blocking, Scripted, profiles_of


class RecordingPlugin(Blocking):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.started_in: list[str] = []
        self.done = threading.Event()
        self._error = error

    def start(self) -> None:
        self.started_in.append(threading.current_thread().name)
        self.done.set()
        if self._error is not None:
            raise self._error


def fail_to_connect() -> FakeApi:
    raise StartError("no usable kubeconfig; name one")


def test_blocking_plugin_requires_a_connection() -> None:
    advice = "or disable the plugins that look objects up: --disable-plugin sticky"
    with pytest.raises(StartError, match=advice):
        pipelines.start_plugins(make_profiles(), ClusterLookup(fail_to_connect))


def test_nonblocking_plugins_need_no_credentials() -> None:
    pipelines.start_plugins(profiles_of(Scripted()), ClusterLookup(fail_to_connect))


def test_plugin_starts_once_in_a_background_thread() -> None:
    plugin = RecordingPlugin()
    profiles = Profiles([Profile(name, (plugin,)) for name in ("a", "b")])
    pipelines.start_plugins(profiles, ClusterLookup(FakeApi))
    assert plugin.done.wait(5)
    assert plugin.started_in == ["start-plugins"]


def test_failed_plugin_start_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast.plugins")
    pipelines.start_plugins(
        profiles_of(RecordingPlugin(OSError("no network"))), ClusterLookup(FakeApi)
    )
    for thread in threading.enumerate():
        if thread.name == "start-plugins":
            thread.join(5)
    (record,) = caplog.records
    assert record.getMessage() == "plugin blocking could not start: OSError: no network"
