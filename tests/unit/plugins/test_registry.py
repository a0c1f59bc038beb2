"""Plugins of other packages; this module is the package whose entry points the tests make."""

from importlib.metadata import EntryPoint, entry_points

import pytest

from holdfast.webhook import plugins
from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError
from tests.support.scripted import Extra

SCRIPTED = "tests.support.scripted"


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, plugins.GROUP)


def refusal(*found: EntryPoint) -> str:
    with pytest.raises(ConfigurationError) as caught:
        plugins.registry(found)
    return str(caught.value)


def test_default_plugins_run_in_the_order_of_their_list() -> None:
    names = [one.name for one in plugins.BUILT_IN if one.name in config.DEFAULT_PLUGINS]

    assert names == [name for name in config.DEFAULT_PLUGINS if name in names]


def test_plugin_of_another_package() -> None:
    found = plugins.registry([point("extra", f"{SCRIPTED}:Extra")])

    assert found["extra"] is Extra
    assert set(found) == {"extra", *plugins.registry([])}


def test_installed_plugins_are_found() -> None:
    installed = {one.name for one in entry_points(group=plugins.GROUP)}

    assert installed | set(plugins.registry([])) == set(plugins.registry())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            [point("delay", f"{SCRIPTED}:Twin")],
            "two plugins are named 'delay': rename or uninstall one of them",
            id="named like one of ours",
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
            id="of another name",
        ),
        pytest.param(
            [point("never", f"{SCRIPTED}:never")],
            f"plugin 'never' ({SCRIPTED}:never) is not a subclass of holdfast.Plugin",
            id="a function",
        ),
    ],
)
def test_entry_point_that_is_no_plugin(found: list[EntryPoint], expected: str) -> None:
    assert expected == refusal(*found)
