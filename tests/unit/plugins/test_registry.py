"""The registry of built-in and third-party plugins."""

from importlib.metadata import EntryPoint, entry_points

import pytest

from holdfast.webhook import plugins
from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError
from tests.support.scripted import Extra

SCRIPTED = "tests.support.scripted"


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, plugins.GROUP)


def test_built_in_plugins_are_in_default_order() -> None:
    names = [plugin.name for plugin in plugins.BUILT_IN if plugin.name in config.DEFAULT_PLUGINS]

    assert names == [name for name in config.DEFAULT_PLUGINS if name in names]


def test_third_party_plugin_is_registered() -> None:
    registry = plugins.registry([point("extra", f"{SCRIPTED}:Extra")])

    assert registry["extra"] is Extra
    assert set(registry) == {"extra", *plugins.registry([])}


def test_installed_plugins_are_found() -> None:
    names = {entry.name for entry in entry_points(group=plugins.GROUP)}

    assert names | set(plugins.registry([])) == set(plugins.registry())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            [point("delay", f"{SCRIPTED}:Twin")],
            "two plugins are named 'delay': rename or uninstall one of them",
            id="name of a built-in plugin",
        ),
        pytest.param(
            [point("gone", "no_such_package:Gone")],
            "plugin 'gone' (no_such_package:Gone) cannot be imported: ModuleNotFoundError: "
            "No module named 'no_such_package': fix or uninstall its package",
            id="no such module",
        ),
        pytest.param(
            [point("gone", f"{SCRIPTED}:Gone")],
            f"plugin 'gone' ({SCRIPTED}:Gone) cannot be imported: AttributeError: "
            f"module '{SCRIPTED}' has no attribute 'Gone': fix or uninstall its package",
            id="no such class",
        ),
        pytest.param(
            [point("another", f"{SCRIPTED}:Extra")],
            f"plugin 'another' ({SCRIPTED}:Extra) has the name 'extra': set name = 'another'",
            id="different name",
        ),
        pytest.param(
            [point("never", f"{SCRIPTED}:never")],
            f"plugin 'never' ({SCRIPTED}:never) is not a subclass of holdfast.Plugin",
            id="a function",
        ),
    ],
)
def test_invalid_entry_point(found: list[EntryPoint], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plugins.registry(found)
    assert str(caught.value) == expected
