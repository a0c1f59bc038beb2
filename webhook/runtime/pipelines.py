"""Build the profiles of a configuration, and the pipeline and the decider that use them."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast.webhook import plugins
from holdfast.webhook.config import config, conversion
from holdfast.webhook.errors import ConfigurationError, StartError, described
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.permit import ReleaseDecider
from holdfast.webhook.framework.pipeline import AdmissionPipeline
from holdfast.webhook.framework.plugin import Plugin, overrides
from holdfast.webhook.framework.profiles import REST_OF_PODS, Profile, Profiles, Selectors
from holdfast.webhook.framework.runner import Observe, Runner, unobserved
from holdfast.webhook.kube.lookup import ClusterLookup
from holdfast.webhook.model import durations
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.pace.plugin import Pace
from holdfast.webhook.plugins.placement import PlacementArgs
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from holdfast.webhook.plugins.virt_controller import AUTO
from holdfast.webhook.plugins.window import Window
from holdfast.webhook.registration import configurations

_log = logging.getLogger("holdfast.plugins")


@dataclass(frozen=True, slots=True)
class Setup:
    """A process's configuration: a file or the defaults, and the disabled plugins.

    `content` replaces the file: a name for errors, and the text.
    """

    path: Path | None = None
    disabled: Sequence[str] = ()
    content: tuple[str, bytes] | None = None

    @property
    def source(self) -> str:
        """The name of the configuration in errors."""
        return self.content[0] if self.content else str(self.path or "the default configuration")

    def load(self, plugin_names: Collection[str]) -> config.Configuration:
        """Return the configuration. Raises ConfigurationError."""
        if self.content is None:
            configuration = config.load(self.path)
        else:
            configuration = config.parse(self.content[1], self.source)
        return config.without(configuration, self.disabled, plugin_names, source=self.source)


def load_profiles(setup: Setup, handle: Handle | None = None) -> Profiles:
    """Build the profiles of a configuration. Raises ConfigurationError."""
    registry = plugins.registry()
    return build_profiles(setup.load(registry), registry, source=setup.source, handle=handle)


def admission_pipeline(
    setup: Setup, observe: Observe = unobserved, handle: Handle | None = None
) -> AdmissionPipeline:
    """Build the admission pipeline from a configuration. Raises ConfigurationError."""
    return AdmissionPipeline(load_profiles(setup, handle), Runner(time.perf_counter, observe))


def release_decider(
    setup: Setup, observe: Observe = unobserved, handle: Handle | None = None
) -> ReleaseDecider:
    """Build the decider for held pods from a configuration. Raises ConfigurationError."""
    profiles = load_profiles(setup, handle)
    return ReleaseDecider(profiles, Runner(time.perf_counter, observe), handle)


def digest(setup: Setup) -> str:
    """Return the digest of a configuration, for comparing replicas. Raises ConfigurationError."""
    return config.digest(setup.load(plugins.registry()))


def sticky_plugin(profiles: Profiles, pod: Pod) -> Sticky | None:
    """Return the sticky plugin of a pod's profile; None if the profile does not enable it."""
    profile = profiles.select(pod)
    candidates = (
        plugin for plugin in (profile.plugins if profile else ()) if isinstance(plugin, Sticky)
    )
    return next(candidates, None)


def sticky_args(profiles: Profiles, pod: Pod) -> StickyArgs | None:
    """Return the sticky plugin's arguments for a pod; None if its profile does not enable it."""
    plugin = sticky_plugin(profiles, pod)
    return None if plugin is None else plugin.args


def sticky_accounts(profiles: Profiles) -> set[str]:
    """Return the accounts of virt-controller that the configuration names."""
    return {plugin.args.account for plugin in profiles.plugins if isinstance(plugin, Sticky)} - {
        AUTO
    }


def has_sticky(profiles: Profiles) -> bool:
    """Return whether a profile enables the sticky plugin."""
    return any(isinstance(plugin, Sticky) for plugin in profiles.plugins)


def count_paces(profiles: Profiles) -> dict[str, tuple[int, int]]:
    """Return the numbers of starting and waiting pods, by the name of the pace."""
    slots = {plugin.slots for plugin in profiles.plugins if isinstance(plugin, Pace)}
    return slots.pop().counts() if slots else {}


def window_states(profiles: Profiles, now_ms: int) -> dict[str, str]:
    """Return the state of each configured window as text, by its name."""
    windows = (plugin for plugin in profiles.plugins if isinstance(plugin, Window))
    return {name: state for window in windows for name, state in window.states(now_ms).items()}


def build_profiles(
    configuration: config.Configuration,
    registry: Mapping[str, type[Plugin]],
    *,
    source: str,
    handle: Handle | None = None,
) -> Profiles:
    """Build all profiles and their plugins. Raises ConfigurationError with the path and a fix."""
    handle = handle or Handle()
    if not configuration.profiles:
        raise ConfigurationError(
            f"{source}: profiles: must not be empty: add a profile, or remove the key"
        )
    profiles: list[Profile] = []
    for index, profile in enumerate(configuration.profiles):
        where = f"{source}: profiles[{index}]"
        if not profile.scheduler_name:
            raise ConfigurationError(
                f"{where}.schedulerName: must not be empty: use a scheduler or '{REST_OF_PODS}'"
            )
        name = profile.name or profile.scheduler_name
        for previous in profiles:
            _check_distinct(profile, name, previous, where)
        new_profile = Profile(
            name,
            _plugins(profile, registry, where, handle),
            profile.run_all_filters,
            scheduler_name=profile.scheduler_name,
            namespaces=profile.namespaces,
            permit_timeout_ms=_permit_timeout_ms(profile, where),
        )
        profiles.append(new_profile)
    built = Profiles(profiles, _selectors(configuration.admission, f"{source}: admission"))
    _check_lengths(built, source)
    return built


def _permit_timeout_ms(profile: config.ProfileConfig, where: str) -> int | None:
    text = profile.permit_timeout
    where = f"{where}.permitTimeout"
    return None if text is None else arg_types.parsed(durations.parse_delay, text, where)


def _check_distinct(
    profile: config.ProfileConfig, name: str, previous: Profile, where: str
) -> None:
    if profile.scheduler_name == previous.scheduler_name:
        shared = set(profile.namespaces) & set(previous.namespaces)
        if shared or not (profile.namespaces or previous.namespaces):
            place = f" in namespace {min(shared)}" if shared else ""
            raise ConfigurationError(
                f"{where}.schedulerName: {profile.scheduler_name!r:.60} has two profiles{place}: "
                "merge them"
            )
    if name == previous.name:
        raise ConfigurationError(
            f"{where}.name: {name!r:.60} names two profiles: give each its own name"
        )


def _selectors(admission: config.Admission, where: str) -> Selectors:
    selectors = {
        "namespaceSelector": admission.namespace_selector,
        "objectSelector": admission.object_selector,
    }
    for name, selector in selectors.items():
        for index, term in enumerate(selector.match_expressions):
            if bool(term.values) != (term.operator in {"In", "NotIn"}):
                verb = "needs" if not term.values else "has no"
                raise ConfigurationError(
                    f"{where}.{name}.matchExpressions[{index}].values: operator {term.operator} "
                    f"{verb} values: {'add some' if not term.values else 'remove them'}"
                )
    # JSON turns tuples into lists
    encoded = (msgspec.json.encode(selector) for selector in selectors.values())
    return Selectors(*map(msgspec.json.decode, encoded))


def _check_lengths(profiles: Profiles, source: str) -> None:
    """Check that match conditions are short enough for API servers. Raises ConfigurationError."""
    expressions = configurations.expressions(profiles)
    name = max(expressions, key=lambda webhook: len(expressions[webhook]))
    length, limit = len(expressions[name]), configurations.MAX_EXPRESSION_CHARACTERS
    if length > limit:
        rules = sum(
            len(plugin.args.rules)
            for plugin in profiles.plugins
            if isinstance(plugin.args, PlacementArgs)
        )
        raise ConfigurationError(
            f"{source}: profiles: {rules:,} placement rules make the match condition of webhook "
            f"{name} {length:,} characters long, but API servers accept {limit:,}: use fewer "
            "rules, values and namespaces, or let rules share keys and lists of namespaces"
        )


def _plugins(
    profile: config.ProfileConfig, registry: Mapping[str, type[Plugin]], where: str, handle: Handle
) -> tuple[Plugin, ...]:
    enabled = _enabled(profile.plugins, registry, f"{where}.plugins")
    configured = [entry.name for entry in profile.plugin_config]
    config.check_names(configured, registry, f"{where}.pluginConfig")
    by_name: dict[str, Plugin] = {}
    for index, plugin_config in enumerate(profile.plugin_config):
        path = f"{where}.pluginConfig[{index}].args"
        by_name[plugin_config.name] = _plugin(
            registry[plugin_config.name], plugin_config.args, path, handle
        )
    for name in enabled:
        if name not in by_name:
            by_name[name] = _plugin(
                registry[name], {}, f"{where}.pluginConfig[{name}].args", handle
            )
    ordered = tuple(by_name[name] for name in enabled)
    _check_order(ordered, f"{where}.plugins")
    return ordered


def _check_order(ordered: Sequence[Plugin], where: str) -> None:
    """Check that plugins that defer to the release run after all plugins that hold pods."""
    deferring = ""
    for plugin in ordered:
        if deferring and plugin.gate:
            raise ConfigurationError(
                f"{where}: {plugin.name} holds pods, so it has to run before {deferring}, which "
                f"edits held pods at release: disable {deferring}, then enable it after "
                f"{plugin.name}"
            )
        if plugin.defers_to_release:
            deferring = plugin.name


def _enabled(
    plugin_set: config.PluginSet, registry: Mapping[str, type[Plugin]], where: str
) -> list[str]:
    enabled = [plugin.name for plugin in plugin_set.enabled]
    disabled = [plugin.name for plugin in plugin_set.disabled]
    config.check_names(enabled, registry, f"{where}.enabled")
    config.check_names(disabled, [*registry, config.ALL_PLUGINS], f"{where}.disabled")
    defaults = [
        name
        for name in config.DEFAULT_PLUGINS
        if name in registry and name not in disabled and config.ALL_PLUGINS not in disabled
    ]
    return [*defaults, *(name for name in enabled if name not in defaults)]


def _plugin(plugin: type[Plugin], args: Mapping[str, Any], where: str, handle: Handle) -> Plugin:
    arguments = conversion.converted(args, plugin.args_type, where)
    try:
        return plugin(arguments, handle)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{where}.{exc}") from None
    except Exception as exc:
        raise ConfigurationError(f'{where}: initializing plugin "{plugin.name}": {exc}') from exc


def start_plugins(profiles: Profiles, lookup: ClusterLookup) -> None:
    """Connect if a plugin may look up objects, and start the plugins in a thread.

    The admission server's worker calls this before its first review. Raises StartError without
    credentials, but not if the API server does not respond.
    """
    blocking = list(dict.fromkeys(plugin.name for plugin in profiles.plugins if plugin.may_block))
    if not blocking:
        return
    try:
        lookup.connect()
    except StartError as exc:
        raise StartError(
            f"{exc}; or disable the plugins that look objects up: "
            f"--disable-plugin {' '.join(blocking)}"
        ) from None
    starting = {plugin.name: plugin for plugin in profiles.plugins if overrides(plugin, "start")}
    threading.Thread(target=_start, args=(starting,), name="start-plugins", daemon=True).start()


def _start(plugins: Mapping[str, Plugin]) -> None:
    """Start one plugin of each name, because `start` has the same effect in every profile."""
    for name, plugin in plugins.items():
        try:
            plugin.start()
        except Exception as exc:  # noqa: BLE001 - reviews will report the error
            _log.warning("plugin %s could not start: %s", name, described(exc))
