"""The configuration file: read strictly, checked once, at start.

One YAML file in the style of KubeSchedulerConfiguration. Every error names the file, the path in
it, and the cure.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from webhook import shapes, values, yaml_text
from webhook.errors import ConfigurationError
from webhook.framework import Handle, Holder, Plugin, PluginClass
from webhook.pipeline import Pipeline
from webhook.profiles import REST_OF_PODS, Profile
from webhook.runner import Observe

API_VERSION = "holdfast.dev/v1alpha1"
T = TypeVar("T")

KIND = "HoldfastConfiguration"
DEFAULT_PLUGINS = ("delay", "sticky", "placement")
"""The plugins that a profile has without saying so, in the order in which they run."""
ALL_PLUGINS = "*"
"""In a list of disabled plugins: all default ones."""
DISABLE_PLUGIN = "--disable-plugin"
"""The option that leaves a plugin out, whatever the file says."""
_ONE_OF_BOTH = "take it out of one of the two"
_CURES = {
    "sticky": "add the component manifests/kubevirt, which has the rights that it needs, or take "
    "it out of the configuration"
}
_SEE_REFERENCE = "docs/reference/configuration.md lists what is accepted"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the file's parts."""


class PluginName(_Part, frozen=True):
    """One plugin in a list."""

    name: str
    """The plugin's name."""


class PluginSet(_Part, frozen=True):
    """Which plugins a profile has beyond, or instead of, the default ones.

    As in KubeSchedulerConfiguration: the default plugins run first, in their order, without those
    that are disabled (`*`: all); enabled ones follow in the order given. To run a default plugin
    at another place, disable it and enable it again.
    """

    enabled: Annotated[list[PluginName], shapes.ONCE] = []
    """Plugins that run behind the default ones, in this order."""
    disabled: Annotated[list[PluginName], shapes.ONCE] = []
    """Default plugins that do not run; `*` names them all."""


class PluginConfig(_Part, frozen=True):
    """The arguments of one plugin in one profile."""

    name: str
    """The plugin's name."""
    args: dict[str, Any] = {}
    """Its arguments: see the plugin's own table."""


class ProfileConfig(_Part, frozen=True):
    """A profile, for the pods of one schedulerName; `*` serves all that no other one names."""

    scheduler_name: shapes.NotEmpty = REST_OF_PODS
    """The pods that the profile serves, by their `spec.schedulerName`; `*` serves all that no
    other profile names."""
    plugins: PluginSet = PluginSet()
    """Which plugins run beside, or instead of, the default ones."""
    plugin_config: list[PluginConfig] = []
    """The arguments of the plugins, each named at most once."""
    run_all_filters: bool = True
    """Whether a refused pod is told all that is wrong with it, or the first refusal alone."""


class Configuration(_Part, frozen=True):
    """Holdfast's configuration file."""

    api_version: Literal["holdfast.dev/v1alpha1"] = "holdfast.dev/v1alpha1"
    """The version of this format."""
    kind: Literal["HoldfastConfiguration"] = "HoldfastConfiguration"
    """What the file is."""
    profiles: Annotated[list[ProfileConfig], shapes.SOME] = msgspec.field(
        default_factory=lambda: [ProfileConfig()]
    )
    """The profiles. A `schedulerName` may stand in one of them only."""


def load(path: Path | None) -> Configuration:
    """Read a configuration file; the defaults where there is none. Raises ConfigurationError."""
    if path is None:
        return Configuration()
    try:
        with path.open("rb") as file:
            text = yaml_text.read(file)
    except OSError as exc:
        raise ConfigurationError(
            f"{path}: cannot be read ({exc.strerror}); give a readable file to --config"
        ) from None
    except yaml_text.SizeError as exc:
        raise ConfigurationError(f"{path}: {exc}; shorten it") from None
    return parse(text, str(path))


def without(
    configuration: Configuration, names: Sequence[str], known: Collection[str], *, source: str
) -> Configuration:
    """Leave plugins out of every profile: those that an installation lacks the rights for.

    Raises ConfigurationError, which names `source`, where a profile asks for one of them by name:
    who configures a plugin is to know that it does not run.
    """
    _check_names(names, known, DISABLE_PLUGIN, "is disabled twice; disable it once")
    profiles = []
    for index, profile in enumerate(configuration.profiles):
        asked = [
            *((f"plugins.enabled[{n}]", one.name) for n, one in enumerate(profile.plugins.enabled)),
            *((f"pluginConfig[{n}]", one.name) for n, one in enumerate(profile.plugin_config)),
        ]
        for where, name in asked:
            if name in names:
                raise ConfigurationError(
                    f"{source}: profiles[{index}].{where}.name: {name!r} is disabled by "
                    f"{DISABLE_PLUGIN}; {_CURES.get(name, _ONE_OF_BOTH)}"
                )
        listed = {plugin.name for plugin in profile.plugins.disabled}
        disabled = [PluginName(name) for name in names if name not in listed]
        plugins = msgspec.structs.replace(
            profile.plugins, disabled=[*profile.plugins.disabled, *disabled]
        )
        profiles.append(msgspec.structs.replace(profile, plugins=plugins))
    return msgspec.structs.replace(configuration, profiles=profiles)


def digest(configuration: Configuration) -> str:
    """Give a short digest of what a configuration says, by which replicas can be compared."""
    return hashlib.blake2b(msgspec.json.encode(configuration), digest_size=6).hexdigest()


def parse(text: bytes, source: str) -> Configuration:
    """Read a configuration from YAML text. Raises ConfigurationError, which names `source`."""
    try:
        document = yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader, made stricter
    except yaml_text.MISTAKES as exc:
        raise ConfigurationError(f"{source}: is no YAML: {values.one_line(exc)}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{source}: is no mapping; begin with 'apiVersion: {API_VERSION}', 'kind: {KIND}'"
        )
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != wanted:
            raise ConfigurationError(
                f"{source}: {key}: {document.get(key)!r:.60} is not supported; write {wanted}"
            )
    return _converted(document, Configuration, source, joint=": ")


def build_pipeline(
    configuration: Configuration,
    plugins: Mapping[str, PluginClass],
    *,
    source: str,
    timer: Callable[[], float],
    observe: Observe,
    handle: Handle | None = None,
) -> Pipeline:
    """Make every profile's plugins. Raises ConfigurationError, which names path and cure."""
    handle = handle or Handle()
    if not configuration.profiles:
        raise ConfigurationError(f"{source}: profiles: is empty; add one, or leave the key out")
    profiles: list[Profile] = []
    for index, profile in enumerate(configuration.profiles):
        where = f"{source}: profiles[{index}]"
        if not profile.scheduler_name:
            raise ConfigurationError(
                f"{where}.schedulerName: is empty; name a scheduler, or write '{REST_OF_PODS}'"
            )
        if any(profile.scheduler_name == other.name for other in profiles):
            raise ConfigurationError(
                f"{where}.schedulerName: {profile.scheduler_name!r:.60} has a profile already; "
                "merge the two"
            )
        enabled = _plugins(profile, plugins, where, handle)
        profiles.append(Profile(profile.scheduler_name, enabled, profile.run_all_filters))
    return Pipeline(profiles, timer=timer, observe=observe)


def _plugins(
    profile: ProfileConfig, known: Mapping[str, PluginClass], where: str, handle: Handle
) -> tuple[Plugin, ...]:
    enabled = _enabled(profile.plugins, known, f"{where}.plugins")
    configured = [config.name for config in profile.plugin_config]
    _check_names(configured, known, f"{where}.pluginConfig", "is configured twice; merge the two")
    made: dict[str, Plugin] = {}
    for index, config in enumerate(profile.plugin_config):
        path = f"{where}.pluginConfig[{index}].args"
        made[config.name] = _plugin(known[config.name], config.args, path, handle)
    for name in enabled:
        if name not in made:
            made[name] = _plugin(known[name], {}, f"{where}.pluginConfig[{name}].args", handle)
    found = tuple(made[name] for name in enabled)
    _check_order(found, f"{where}.plugins")
    return found


def _check_order(plugins: Sequence[Plugin], where: str) -> None:
    """Check that what leaves held pods for their release runs when it is known who is held."""
    leaving = ""
    for plugin in plugins:
        if leaving and isinstance(plugin, Holder):
            raise ConfigurationError(
                f"{where}: {plugin.name} holds pods, and runs behind {leaving}, which leaves what "
                f"is held for its release; disable {leaving}, and enable it behind {plugin.name}"
            )
        if getattr(plugin, "leaves_for_release", False):
            leaving = plugin.name


def _enabled(plugins: PluginSet, known: Mapping[str, PluginClass], where: str) -> list[str]:
    enabled = [plugin.name for plugin in plugins.enabled]
    disabled = [plugin.name for plugin in plugins.disabled]
    _check_names(enabled, known, f"{where}.enabled", "is enabled twice; enable it once")
    _check_names(
        disabled, [*known, ALL_PLUGINS], f"{where}.disabled", "is disabled twice; disable it once"
    )
    kept = [
        name
        for name in DEFAULT_PLUGINS
        if name in known and name not in disabled and ALL_PLUGINS not in disabled
    ]
    return [*kept, *(name for name in enabled if name not in kept)]


def _plugin(plugin: PluginClass, args: Mapping[str, Any], where: str, handle: Handle) -> Plugin:
    converted = _converted(args, plugin.args_type, where)
    try:
        return plugin(converted, handle)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{where}.{exc}") from None
    except Exception as exc:
        raise ConfigurationError(f'{where}: initializing plugin "{plugin.name}": {exc}') from exc


def _check_names(names: Iterable[str], known: Collection[str], where: str, twice: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name not in known:
            near = difflib.get_close_matches(name, known, cutoff=0.5) or sorted(known)
            raise ConfigurationError(
                f"{where}[{index}].name: no plugin is named {name!r:.60}; "
                f"did you mean {' or '.join(near)}?"
            )
        if name in seen:
            raise ConfigurationError(f"{where}[{index}].name: {name!r} {twice}")
        seen.add(name)


def _converted(value: Any, kind: type[T], where: str, *, joint: str = ".") -> T:
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as exc:
        text, _, path = str(exc).partition(" - at `$")
        path = path.strip(".`")
        place = f"{where}{joint}{path}" if path else where
        raise ConfigurationError(f"{place}: {_cured(text, kind)}") from None


def _cured(text: str, kind: type[Any]) -> str:
    """Say how to mend what msgspec found wrong."""
    _, unknown, name = text.partition("unknown field ")
    if not unknown:
        return f"{values.shortened(text)}; {_SEE_REFERENCE}"
    name = name.strip("`")
    others = [field for field in _field_names(kind) if field != name]
    near = difflib.get_close_matches(name, others, n=2, cutoff=0.5)
    cure = f"did you mean {' or '.join(near)}?" if near else _SEE_REFERENCE
    return f"there is no field {name!r:.60} here; {cure}"


def _field_names(kind: type[Any]) -> list[str]:
    """Name all fields of a Struct and of those within it, as they are written in the file."""
    schemas = msgspec.json.schema(kind).get("$defs", {})
    return sorted({name for schema in schemas.values() for name in schema.get("properties", {})})


class _StrictLoader(yaml_text.Loader):
    """YAML without repeated keys, which hide mistakes, as well."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # refused below
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value!r} stands here twice; keep one",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)
