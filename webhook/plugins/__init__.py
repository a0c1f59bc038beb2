"""The plugins that ship with Holdfast, by name."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.errors import ConfigurationError
from webhook.pipeline import PluginClass
from webhook.plugins.delay import Delay


def registry(*more: PluginClass) -> Mapping[str, PluginClass]:
    """Gather the built-in plugins and further ones. Raises ConfigurationError on a name twice."""
    found: dict[str, PluginClass] = {}
    built_in: tuple[PluginClass, ...] = (Delay,)
    for plugin in (*built_in, *more):
        if plugin.name in found:
            raise ConfigurationError(
                f"two plugins are named {plugin.name!r}; rename or uninstall one of them"
            )
        found[plugin.name] = plugin
    return found
