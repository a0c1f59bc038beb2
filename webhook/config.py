"""The configuration file: read strictly, checked once, at start.

One YAML file in the style of KubeSchedulerConfiguration. Every error names the file, the path in
it, and the cure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from webhook.errors import ConfigurationError
from webhook.pipeline import REST_OF_PODS, Observe, Pipeline, Plugin, PluginClass, Profile

API_VERSION = "holdfast.dev/v1alpha1"
T = TypeVar("T")

KIND = "HoldfastConfiguration"
SIZE_LIMIT = 1 << 20
"""Bytes; a ConfigMap holds no more."""

# PyYAML's own constructors raise whatever comes when a value does not fit its explicit tag
_NO_YAML = (yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError)


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the file's parts."""


class PluginName(_Part, frozen=True):
    """One plugin in a list."""

    name: str


class PluginSet(_Part, frozen=True):
    """The plugins of a profile, in the order in which they run."""

    enabled: list[PluginName] = []


class PluginConfig(_Part, frozen=True):
    """The arguments of one plugin in one profile."""

    name: str
    args: dict[str, Any] = {}


class ProfileConfig(_Part, frozen=True):
    """A profile, for the pods of one schedulerName; `*` serves all that no other one names."""

    scheduler_name: str = REST_OF_PODS
    plugins: PluginSet = msgspec.field(
        default_factory=lambda: PluginSet(enabled=[PluginName(name="delay")])
    )
    plugin_config: list[PluginConfig] = []


class Configuration(_Part, frozen=True):
    """The whole file."""

    api_version: Literal["holdfast.dev/v1alpha1"] = "holdfast.dev/v1alpha1"
    kind: Literal["HoldfastConfiguration"] = "HoldfastConfiguration"
    profiles: list[ProfileConfig] = msgspec.field(default_factory=lambda: [ProfileConfig()])


def load(path: Path | None) -> Configuration:
    """Read a configuration file; the defaults where there is none. Raises ConfigurationError."""
    if path is None:
        return Configuration()
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_LIMIT + 1)
    except OSError as exc:
        raise ConfigurationError(
            f"{path}: cannot be read ({exc.strerror}); give a readable file to --config"
        ) from None
    if len(text) > SIZE_LIMIT:
        raise ConfigurationError(f"{path}: is larger than {SIZE_LIMIT >> 20} MiB; shorten it")
    return parse(text, str(path))


def parse(text: bytes, source: str) -> Configuration:
    """Read a configuration from YAML text. Raises ConfigurationError, which names `source`."""
    try:
        document = yaml.load(text, _StrictLoader)  # noqa: S506 - a SafeLoader, made stricter
    except _NO_YAML as exc:
        raise ConfigurationError(f"{source}: is no YAML: {_one_line(exc)}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{source}: is no mapping; begin with 'apiVersion: {API_VERSION}', 'kind: {KIND}'"
        )
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(key) != wanted:
            raise ConfigurationError(
                f"{source}: {key}: {document.get(key)!r:.60} is not supported; write {wanted}"
            )
    return _converted(document, Configuration, source)


def build_pipeline(
    configuration: Configuration,
    plugins: Mapping[str, PluginClass],
    *,
    source: str,
    timer: Callable[[], float],
    observe: Observe,
) -> Pipeline:
    """Make every profile's plugins. Raises ConfigurationError, which names path and cure."""
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
                f"{where}.schedulerName: {profile.scheduler_name!r} has a profile already; "
                "merge the two"
            )
        profiles.append(Profile(profile.scheduler_name, _plugins(profile, plugins, where)))
    return Pipeline(profiles, timer=timer, observe=observe)


def _plugins(
    profile: ProfileConfig, known: Mapping[str, PluginClass], where: str
) -> tuple[Plugin, ...]:
    enabled = [plugin.name for plugin in profile.plugins.enabled]
    configured = [config.name for config in profile.plugin_config]
    _check_names(enabled, known, f"{where}.plugins.enabled", "is enabled twice; enable it once")
    _check_names(configured, known, f"{where}.pluginConfig", "is configured twice; merge the two")
    args = {
        config.name: (config.args, f"{where}.pluginConfig[{index}].args")
        for index, config in enumerate(profile.plugin_config)
    }
    return tuple(
        _plugin(known[name], *args.get(name, ({}, f"{where}.plugins.enabled[{index}]")))
        for index, name in enumerate(enabled)
    )


def _plugin(plugin: PluginClass, args: Mapping[str, Any], where: str) -> Plugin:
    converted = _converted(args, plugin.args_type, where)
    try:
        return plugin(converted)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{where}.{exc}") from None
    except Exception as exc:
        raise ConfigurationError(f'{where}: initializing plugin "{plugin.name}": {exc}') from exc


def _check_names(
    names: Iterable[str], known: Mapping[str, PluginClass], where: str, twice: str
) -> None:
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


def _converted(value: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as exc:
        text, _, path = str(exc).partition(" - at `$")
        path = path.rstrip("`")
        raise ConfigurationError(f"{where}{path and ': '}{path.lstrip('.')}: {text}") from None


class _StrictLoader(yaml.SafeLoader):
    """YAML without the two things that hide mistakes and bombs: repeated keys and aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases are not supported; write the value out", problem_mark=mark
            )
        return super().compose_node(parent, index)

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


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())
