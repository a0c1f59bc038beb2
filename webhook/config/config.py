"""The configuration file: strictly parsed, checked once at startup.

One YAML file in the style of KubeSchedulerConfiguration. Every error names the file, the path in
it, and a fix.
"""

import difflib
import hashlib
import logging
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from holdfast.webhook import safe_yaml
from holdfast.webhook.config import conversion
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework import arg_types
from holdfast.webhook.framework.profiles import REST_OF_PODS
from holdfast.webhook.model import messages

API_VERSION = "holdfast.dev/v1beta1"
DEPRECATED_VERSIONS = ("holdfast.dev/v1alpha1",)
"""Versions that are deprecated but still accepted; v1alpha1 has the fields of v1beta1."""
KIND = "HoldfastConfiguration"
INVALID_YAML = "invalid YAML: "
DEFAULT_PLUGINS = ("delay", "window", "after", "pace", "approval", "sticky", "placement")
"""The plugins that a profile has by default, in the order in which they run."""
ALL_PLUGINS = "*"
"""Stands for all default plugins in a list of disabled plugins."""
DISABLE_PLUGIN = "--disable-plugin"
"""The option that disables a plugin in every profile."""
_REMOVE_ONE = "remove one of the two"
_FIXES = {
    "sticky": "add the component manifests/kubevirt, which grants the rights that it needs, or "
    "remove it from the configuration"
}

_log = logging.getLogger("holdfast.config")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the file's parts."""


class PluginName(_Part, frozen=True):
    """One plugin in a list."""

    name: str
    """The plugin's name."""


class PluginSet(_Part, frozen=True):
    """The plugins that a profile enables and disables.

    As in KubeSchedulerConfiguration, the default plugins run first, except the disabled ones;
    enabled plugins follow in the given order. To move a default plugin, disable it and enable it
    again.
    """

    enabled: Annotated[list[PluginName], arg_types.ONCE] = []
    """Plugins that run after the default ones, in this order."""
    disabled: Annotated[list[PluginName], arg_types.ONCE] = []
    """Default plugins that do not run; `*` disables all."""


class PluginConfig(_Part, frozen=True):
    """The arguments of one plugin in one profile."""

    name: str
    """The plugin's name."""
    args: dict[str, Any] = {}
    """Its arguments: see the plugin's own table."""


class ProfileConfig(_Part, frozen=True):
    """A profile, for the pods of one schedulerName."""

    scheduler_name: arg_types.NotEmpty = REST_OF_PODS
    """The `spec.schedulerName` of the pods that the profile serves; `*` serves all pods that no
    other profile does."""
    namespaces: Annotated[tuple[arg_types.Namespace, ...], arg_types.ONCE] = ()
    """The namespaces that the profile serves; all if empty. A profile that names a pod's namespace
    comes before one that serves all."""
    name: str = ""
    """The profile's name in metrics and in `holdfast.dev/profile`; by default the schedulerName.
    Profiles with one schedulerName need different names."""
    plugins: PluginSet = PluginSet()
    """The plugins that run in addition to, or instead of, the default ones."""
    plugin_config: list[PluginConfig] = []
    """The plugins' arguments, once per plugin."""
    run_all_filters: bool = True
    """Whether the message of a rejected pod names all reasons, or only the first."""
    permit_timeout: arg_types.Delay | None = None
    """The time after which a held pod is released without a plugin that keeps failing; by default
    never."""


class SelectorRequirement(_Part, frozen=True, omit_defaults=True):
    """A requirement on a label."""

    key: arg_types.Key
    """The key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """The operator."""
    values: tuple[arg_types.LabelValue, ...] = ()
    """Values, for `In` and `NotIn`."""


class LabelSelector(_Part, frozen=True, omit_defaults=True):
    """A label selector, as Kubernetes has it; empty selects all."""

    match_labels: dict[arg_types.Key, arg_types.LabelValue] = {}
    """Labels that must have these values."""
    match_expressions: tuple[SelectorRequirement, ...] = ()
    """Requirements that must all be met."""


class Admission(_Part, frozen=True):
    """Which namespaces and pods are sent to Holdfast."""

    namespace_selector: LabelSelector = LabelSelector()
    """Selects namespaces by their labels. Pods in others are never sent to Holdfast."""
    object_selector: LabelSelector = LabelSelector()
    """Selects pods by their labels; it does not apply to workloads."""


class Configuration(_Part, frozen=True):
    """Holdfast's configuration file."""

    api_version: Literal["holdfast.dev/v1beta1"] = "holdfast.dev/v1beta1"
    """The version of this format."""
    kind: Literal["HoldfastConfiguration"] = "HoldfastConfiguration"
    """The kind of the file."""
    admission: Admission = Admission()
    """Which namespaces and pods are sent to Holdfast."""
    profiles: Annotated[list[ProfileConfig], arg_types.SOME] = msgspec.field(
        default_factory=lambda: [ProfileConfig()]
    )
    """The profiles. No two with one `schedulerName` may name the same namespace, or both serve
    all."""


def load(path: Path | None) -> Configuration:
    """Return the configuration in a file, or the defaults for None. Raises ConfigurationError."""
    return Configuration() if path is None else parse(content(path), str(path))


def content(path: Path) -> bytes:
    """Return the content of a file. Raises ConfigurationError."""
    try:
        with path.open("rb") as file:
            return safe_yaml.read(file)
    except OSError as exc:
        raise ConfigurationError(
            f"{path}: cannot be read ({exc.strerror}): name a readable file"
        ) from None
    except safe_yaml.SizeError as exc:
        raise ConfigurationError(f"{path}: {exc}: shorten it") from None


def without(
    configuration: Configuration,
    names: Sequence[str],
    plugin_names: Collection[str],
    *,
    source: str,
) -> Configuration:
    """Return a configuration with plugins disabled, because the installation lacks their rights.

    Raises ConfigurationError, which names `source`, if a profile names a disabled plugin: its
    author would not notice that the plugin does not run.
    """
    check_names(names, plugin_names, DISABLE_PLUGIN)
    profiles = []
    for index, profile in enumerate(configuration.profiles):
        mentions = [
            *(
                (f"plugins.enabled[{n}]", plugin.name)
                for n, plugin in enumerate(profile.plugins.enabled)
            ),
            *(
                (f"pluginConfig[{n}]", plugin.name)
                for n, plugin in enumerate(profile.plugin_config)
            ),
        ]
        for where, name in mentions:
            if name in names:
                raise ConfigurationError(
                    f"{source}: profiles[{index}].{where}.name: {name!r} is disabled by "
                    f"{DISABLE_PLUGIN}: {_FIXES.get(name, _REMOVE_ONE)}"
                )
        disabled_names = {plugin.name for plugin in profile.plugins.disabled}
        disabled = [PluginName(name) for name in names if name not in disabled_names]
        plugins = msgspec.structs.replace(
            profile.plugins, disabled=[*profile.plugins.disabled, *disabled]
        )
        profiles.append(msgspec.structs.replace(profile, plugins=plugins))
    return msgspec.structs.replace(configuration, profiles=profiles)


def digest(configuration: Configuration) -> str:
    """Return a short digest of a configuration, to compare replicas."""
    return hashlib.sha256(msgspec.json.encode(configuration)).hexdigest()[:12]


def parse(text: bytes, source: str) -> Configuration:
    """Parse a configuration from YAML. Raises ConfigurationError, which names `source`."""
    try:
        document = yaml.load(text, StrictLoader)  # noqa: S506 - a SafeLoader, made stricter
    except safe_yaml.MISTAKES as exc:
        raise ConfigurationError(f"{source}: {INVALID_YAML}{messages.one_line(exc)}") from None
    configuration = read(document, source)
    if (version := document["apiVersion"]) in DEPRECATED_VERSIONS:
        _log.warning("%s: apiVersion %s is deprecated: use %s", source, version, API_VERSION)
    return configuration


def read(document: Any, source: str) -> Configuration:
    """Read a parsed document. Raises ConfigurationError, which names `source`."""
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{source}: not a mapping: begin with 'apiVersion: {API_VERSION}', 'kind: {KIND}'"
        )
    if document.get("apiVersion") in DEPRECATED_VERSIONS:
        document = {**document, "apiVersion": API_VERSION}
    if "config" in document:
        raise ConfigurationError(
            f"{source}: unknown field 'config': in Helm values, check the part under config: alone"
        )
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if key not in document:
            raise ConfigurationError(f"{source}: {key}: is missing: add '{key}: {expected}'")
        if document.get(key) != expected:
            raise ConfigurationError(
                f"{source}: {key}: {document.get(key)!r:.60} is not supported: use {expected}"
            )
    return conversion.converted(document, Configuration, source, joint=": ")


def check_names(names: Iterable[str], choices: Collection[str], where: str) -> None:
    """Check a list of plugin names. Raises ConfigurationError on unknown and repeated ones."""
    earlier: set[str] = set()
    for index, name in enumerate(names):
        if name not in choices:
            matches = difflib.get_close_matches(name, choices, cutoff=0.5) or sorted(choices)
            raise ConfigurationError(
                f"{where}[{index}].name: unknown plugin {name!r:.60}: "
                f"did you mean {' or '.join(matches)}?"
            )
        if name in earlier:
            raise ConfigurationError(f"{where}[{index}].name: {name!r} is listed twice: remove one")
        earlier.add(name)


class StrictLoader(safe_yaml.Loader):
    """A YAML loader that also rejects duplicate keys, which hide mistakes."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        """Construct a mapping. Raises MarkedYAMLError for a duplicate key."""
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # rejected below
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value!r}: remove one",
                    problem_mark=key.start_mark,
                )
            keys.add(key.value)
        return super().construct_mapping(node, deep)
