"""The plugins that ship with Holdfast, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from webhook.errors import ConfigurationError
from webhook.framework import PluginClass
from webhook.plugins.delay import Delay
from webhook.plugins.placement import Placement
from webhook.plugins.sticky import Sticky

GROUP = "holdfast.plugins"
"""The entry-point group under which an installed package registers its plugins."""
BUILT_IN: tuple[PluginClass, ...] = (Delay, Sticky, Placement)


def registry(found: Iterable[EntryPoint] | None = None) -> Mapping[str, PluginClass]:
    """Gather the built-in plugins and those of installed packages, by name.

    `found` are the entry points, looked up where they are None. Raises ConfigurationError on a
    name twice, and on a plugin that cannot be imported.
    """
    plugins: dict[str, PluginClass] = {}
    points = entry_points(group=GROUP) if found is None else found
    for plugin in (*BUILT_IN, *map(_load, points)):
        if plugin.name in plugins:
            raise ConfigurationError(
                f"two plugins are named {plugin.name!r}; rename or uninstall one of them"
            )
        plugins[plugin.name] = plugin
    return plugins


def _load(point: EntryPoint) -> PluginClass:
    try:
        plugin: PluginClass = point.load()
    except Exception as exc:
        raise ConfigurationError(
            f"plugin {point.name!r} ({point.value}) cannot be imported: "
            f"{type(exc).__name__}: {exc}; mend or uninstall its package"
        ) from exc
    missing = [name for name in ("name", "args_type") if not hasattr(plugin, name)]
    if missing or plugin.name != point.name:
        raise ConfigurationError(
            f"plugin {point.name!r} ({point.value}) is no plugin class of that name: "
            f"it needs name = {point.name!r}, and args_type"
        )
    return plugin
