"""Built-in plugins, and plugins from installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.plugin import Plugin
from holdfast.webhook.plugins.after.plugin import After
from holdfast.webhook.plugins.approval import Approval
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.plugins.placement import Placement
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.plugins.window import Window

GROUP = "holdfast.plugins"
"""The entry-point group in which an installed package registers its plugins."""
BUILT_IN: tuple[type[Plugin], ...] = (Delay, Window, After, Pace, Approval, Sticky, Placement)


def registry(entries: Iterable[EntryPoint] | None = None) -> Mapping[str, type[Plugin]]:
    """Return the built-in plugins and those of installed packages, by name.

    `entries` are the entry points, by default those of all installed packages. Raises
    ConfigurationError for a duplicate name or a plugin that cannot be imported.
    """
    plugins: dict[str, type[Plugin]] = {}
    points = entry_points(group=GROUP) if entries is None else entries
    for plugin in (*BUILT_IN, *map(_load, points)):
        if plugin.name in plugins:
            raise ConfigurationError(
                f"two plugins are named {plugin.name!r}: rename or uninstall one of them"
            )
        plugins[plugin.name] = plugin
    return plugins


def _load(point: EntryPoint) -> type[Plugin]:
    label = f"plugin {point.name!r} ({point.value})"
    try:
        plugin = point.load()
    except Exception as exc:
        raise ConfigurationError(
            f"{label} cannot be imported: {type(exc).__name__}: {exc}: fix or uninstall its package"
        ) from exc
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise ConfigurationError(f"{label} is not a subclass of holdfast.Plugin")
    name = getattr(plugin, "name", None)
    if name != point.name:
        raise ConfigurationError(f"{label} has the name {name!r}: set name = {point.name!r}")
    return plugin
