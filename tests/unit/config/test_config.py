import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.webhook import plugins, safe_yaml
from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.framework.handle import Handle
from holdfast.webhook.framework.plugin import Args, Plugin
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.runtime import pipelines
from tests.support import config_cases
from tests.support.builders import make_profiles
from tests.support.config_cases import HEAD, SEE
from tests.support.scripted import Extra, Other


def rejection(text: str | bytes, *, known: Any = None) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigurationError) as caught:
        pipelines.build_profiles(
            config.parse(content, "h.yaml"), known or plugins.registry([]), source="h.yaml"
        )
    return str(caught.value)


def test_empty_file_gives_the_defaults() -> None:
    assert config.load(None) == config.parse(HEAD.encode(), "x")
    assert list(make_profiles().by_name) == ["*"]
    assert isinstance(make_profiles().by_name["*"].plugins[0], Delay)


def test_each_profile_has_its_own_plugin_arguments() -> None:
    profiles = make_profiles(
        """
profiles:
- schedulerName: a
  pluginConfig: [{name: delay, args: {annotations: [a.io/wait]}}]
- schedulerName: b
  plugins: {disabled: [{name: '*'}]}
- {}
""",
        known={"delay": Delay},
    )

    keys = {
        name: [plugin.keys[0] for plugin in profile.plugins]
        for name, profile in profiles.by_name.items()
    }
    assert keys == {"a": ["a.io/wait"], "b": [], "*": ["holdfast.dev/delay"]}


@pytest.mark.parametrize(("text", "expected"), config_cases.FILES)
def test_invalid_file_is_rejected(text: str, expected: str) -> None:
    assert expected == rejection(text)


ENDLESS = "\u23f0" * 5_000


@pytest.mark.parametrize(
    ("text", "end"),
    [
        pytest.param(
            HEAD + config_cases.of_delay(f"onInvalid: {ENDLESS}"),
            f"{ENDLESS[:9]}': use ignore or reject",
            id="enum value",
        ),
        pytest.param(f"a: !{'x' * 5_000} 1", "... ^", id="tag"),
        pytest.param(f"? {ENDLESS}\n: 1\n? {ENDLESS}\n: 2\n", "... ^", id="duplicate key"),
        pytest.param(f"a: !!float {ENDLESS}", f"{ENDLESS[:9]}'", id="number"),
        pytest.param(
            HEAD + f"profiles:\n- schedulerName: {ENDLESS}\n- schedulerName: {ENDLESS}\n",
            "merge them",
            id="duplicate profile",
        ),
    ],
)
def test_error_message_length_is_limited(text: str, end: str) -> None:
    message = rejection(text)

    assert len(message) < 600
    assert message.endswith(end)


def test_unknown_field_is_not_suggested_for_itself() -> None:
    """A toleration has a field `value`; the condition of a rule does not."""
    rule = "{name: a, when: {annotation: a, value: b}}"
    text = f"profiles: [{{pluginConfig: [{{name: placement, args: {{rules: [{rule}]}}}}]}}]"

    assert rejection(HEAD + text).endswith(
        "rules[0].when: unknown field 'value': use annotation, equals, exists, in, label, "
        "namespaces"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff\xfe\x00", id="binary"),
        pytest.param(b"[" * 5_000, id="deeply nested lists"),
        pytest.param(b"? {a: b}\n: c", id="mapping as a key"),
        pytest.param(b"a: !!timestamp 2026-99-99", id="impossible date"),
        pytest.param(b"a: " + b"9" * 5_000, id="huge number"),
        pytest.param(b"a: !!timestamp x", id="mismatched tag: timestamp"),
        pytest.param(b"a: !!python/object/apply:os.system [x]", id="Python tag"),
        pytest.param("{\ufeffa: 1}]".encode(), id="byte order mark in the middle"),
        pytest.param(b"a: 1\n---\nb: 2", id="two documents"),
    ],
)
def test_invalid_yaml_error_is_one_line(text: bytes) -> None:
    message = rejection(text)

    assert message.startswith("h.yaml: invalid YAML: ")
    assert message.isprintable()


YAML = "{}[]&*!|>-:,?'\" \n\t#%@`ab0.<~"


@given(st.binary(max_size=40) | st.text(YAML, max_size=40).map(str.encode))
def test_arbitrary_content_is_rejected_in_one_line(content: bytes) -> None:
    assert rejection(content).isprintable()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("profiles: " + "[" * 2**19, id="many brackets"),
        pytest.param("profiles:\n" + "- {}\n" * 2**12, id="many profiles"),
        pytest.param("profiles: [{schedulerName: " + "x" * 2**19 + ", a: 1}]", id="long name"),
        pytest.param("\n".join(f"k{n}: 1" for n in range(2**12)), id="many keys"),
    ],
)
def test_hostile_file_is_rejected_with_a_short_message(text: str) -> None:
    assert len(rejection(HEAD + text)) < 1_000


def test_deprecated_api_version_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = (HEAD + "profiles: [{schedulerName: batch}]").encode()
    old_text = text.replace(b"v1beta1", b"v1alpha1")
    assert config.digest(config.parse(old_text, "h.yaml")) == config.digest(
        config.parse(text, "h.yaml")
    )
    assert caplog.messages == [
        "h.yaml: apiVersion holdfast.dev/v1alpha1 is deprecated: use holdfast.dev/v1beta1"
    ]


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (0, f"cannot be read ({os.strerror(2)}): name a readable file"),
        (safe_yaml.SIZE_LIMIT + 1, "is larger than 1 MiB: shorten it"),
    ],
    ids=["missing", "huge"],
)
def test_missing_or_huge_file_is_rejected(tmp_path: Path, size: int, problem: str) -> None:
    file = tmp_path / "h.yaml"
    if size:
        file.write_bytes(b"#" * size)
    with pytest.raises(ConfigurationError) as caught:
        config.load(file)

    assert f"{file}: {problem}" == str(caught.value)


# --- plugins of a profile, and their construction ----------------------------------------------


class Second(Other):
    """Stands in for the default plugin that runs after delay."""

    name = "placement"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        super().__init__()


class Third(Second):
    name = "third"


class Broken(Second):
    """A third-party plugin whose constructor fails."""

    name = "broken"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        raise LookupError("no luck")


class Choosy(Second):
    """A third-party plugin that rejects its arguments."""

    name = "choosy"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        raise ConfigurationError("rules: must not be empty: add one")


class HoldingPlugin(Second):
    """A third-party plugin that holds pods."""

    name = "holding"
    gate: ClassVar[str] = "holdfast.dev/holding"


FOUND: tuple[type[Plugin], ...] = (Third, Second, Delay, Broken, Choosy, Extra)
KNOWN = {plugin.name: plugin for plugin in FOUND}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param("", ["delay", "placement"], id="defaults"),
        pytest.param(
            "enabled: [{name: third}, {name: delay}]",
            ["delay", "placement", "third"],
            id="default plugin enabled explicitly",
        ),
        pytest.param("disabled: [{name: delay}]", ["placement"], id="one disabled"),
        pytest.param("disabled: [{name: '*'}]", [], id="all disabled"),
        pytest.param(
            "disabled: [{name: '*'}, {name: delay}], enabled: [{name: third}, {name: delay}]",
            ["third", "delay"],
            id="enabled plugins only, in order",
        ),
        pytest.param(
            "disabled: [{name: delay}], enabled: [{name: delay}]",
            ["placement", "delay"],
            id="reordered default plugin",
        ),
    ],
)
def test_plugins_of_a_profile(listed: str, expected: list[str]) -> None:
    profiles = make_profiles(f"profiles: [{{plugins: {{{listed}}}}}]", known=KNOWN)

    assert expected == [plugin.name for plugin in profiles.by_name["*"].plugins]


LATE = (
    "{name: late, when: {label: a, exists: true}, resolveAtRelease: true, "
    "require: [{key: b, operator: Exists}]}"
)
HOLDS_TOO_LATE = (
    "h.yaml: profiles[0].plugins: {0} holds pods, so it has to run before placement, which "
    "edits held pods at release: disable placement, then enable it after {0}"
)


@pytest.mark.parametrize(
    ("listed", "holder"),
    [
        pytest.param("", "", id="defaults"),
        pytest.param("enabled: [{name: holding}]", "holding", id="third-party plugin"),
        pytest.param(
            "disabled: [{name: placement}], enabled: [{name: holding}, {name: placement}]",
            "",
            id="reordered as advised",
        ),
        pytest.param("disabled: [{name: delay}], enabled: [{name: delay}]", "delay", id="delay"),
    ],
)
@pytest.mark.parametrize("late", [True, False], ids=["at release", "at creation"])
def test_holding_plugin_must_precede_plugin_that_edits_at_release(
    listed: str, holder: str, *, late: bool
) -> None:
    args = f"{{name: placement, args: {{rules: [{LATE}]}}}}"
    configured = f"pluginConfig: [{args if late else ''}], plugins: {{{listed}}}"
    text = f"{HEAD}profiles: [{{{configured}}}]"
    registry: dict[str, type[Plugin]] = {**plugins.registry([]), "holding": HoldingPlugin}

    if late and holder:
        assert rejection(text, known=registry) == HOLDS_TOO_LATE.format(holder)
    else:
        make_profiles(text.removeprefix(HEAD), known=registry)


def test_run_all_filters_is_on_by_default_and_can_be_disabled() -> None:
    assert make_profiles().by_name["*"].run_all
    assert not make_profiles("profiles: [{runAllFilters: false}]").by_name["*"].run_all


def test_permit_timeout() -> None:
    assert make_profiles("profiles: [{}]").by_name["*"].permit_timeout_ms is None
    profiles = make_profiles('profiles: [{permitTimeout: "10m"}]')
    assert profiles.by_name["*"].permit_timeout_ms == 600_000
    with pytest.raises(ConfigurationError, match=r"profiles\[0\].permitTimeout: "):
        make_profiles('profiles: [{permitTimeout: "999999999h"}]')


EXTRA = "plugins: {enabled: [{name: extra}]}"


def test_plugin_constructor_receives_arguments_and_handle() -> None:
    handle = Handle()
    profiles = make_profiles(
        f"profiles: [{{{EXTRA}, pluginConfig: [{{name: extra, args: {{must: 5}}}}]}}]",
        known=KNOWN,
        handle=handle,
    )

    plugin = profiles.by_name["*"].plugins[-1]
    assert isinstance(plugin, Extra)
    assert plugin.args == Extra.ExtraArgs(must=5)
    assert plugin.handle is handle


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(
            "plugins: {enabled: [{name: broken}]}",
            'pluginConfig[broken].args: initializing plugin "broken": no luck',
            id="constructor fails",
        ),
        pytest.param(
            "plugins: {enabled: [{name: choosy}]}",
            "pluginConfig[choosy].args.rules: must not be empty: add one",
            id="invalid arguments",
        ),
        pytest.param(
            EXTRA,
            f"pluginConfig[extra].args: Object missing required field `must`{SEE}",
            id="missing argument",
        ),
        pytest.param(
            "pluginConfig: [{name: extra, args: {must: 1, mai: x}}]",
            "pluginConfig[0].args: unknown field 'mai': did you mean may?",
            id="unknown argument",
        ),
    ],
)
def test_plugin_initialization_error_names_the_plugin(profile: str, expected: str) -> None:
    assert f"h.yaml: profiles[0].{expected}" == rejection(
        HEAD + f"profiles: [{{{profile}}}]", known=KNOWN
    )


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        (
            "{schedulerName: x, namespaces: [a, b]}, {name: y, schedulerName: x, namespaces: [b]}",
            "profiles[1].schedulerName: 'x' has two profiles in namespace b: merge them",
        ),
        (
            "{schedulerName: x}, {schedulerName: x, namespaces: [b]}",
            "profiles[1].name: 'x' names two profiles: give each its own name",
        ),
    ],
)
def test_conflicting_profiles(profiles: str, expected: str) -> None:
    assert rejection(f"{HEAD}profiles: [{profiles}]") == f"h.yaml: {expected}"


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("operator: In", "operator In needs values: add some"),
        ("operator: Exists, values: [x]", "operator Exists has no values: remove them"),
    ],
)
@pytest.mark.parametrize("selector", ["objectSelector", "namespaceSelector"])
def test_invalid_selectors(selector: str, requirement: str, expected: str) -> None:
    text = f"admission: {{{selector}: {{matchExpressions: [{{key: a, {requirement}}}]}}}}"
    path = f"admission.{selector}.matchExpressions[0].values"
    assert rejection(HEAD + text) == f"h.yaml: {path}: {expected}"


def test_equivalent_configurations_have_the_same_digest() -> None:
    configuration = config.parse(f"{HEAD}profiles: [{{schedulerName: x}}]".encode(), "a")
    equal = config.parse(f"# a remark\n{HEAD}profiles:\n- schedulerName: x\n".encode(), "b")
    different = config.parse(f"{HEAD}profiles: [{{schedulerName: y}}]".encode(), "c")
    assert config.digest(configuration) == config.digest(equal)
    assert config.digest(configuration) != config.digest(different)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "", ["delay", "window", "after", "pace", "approval", "placement"], id="defaults"
        ),
        pytest.param(
            "profiles: [{plugins: {disabled: [{name: sticky}]}}]",
            ["delay", "window", "after", "pace", "approval", "placement"],
            id="already disabled",
        ),
        pytest.param("profiles: [{plugins: {disabled: [{name: '*'}]}}]", [], id="all disabled"),
    ],
)
def test_disabled_plugins_are_removed_from_profiles(text: str, expected: list[str]) -> None:
    configuration = config.parse(f"{HEAD}{text}".encode(), "h.yaml")
    remaining = config.without(configuration, ["sticky"], plugins.registry([]), source="h.yaml")
    profiles = pipelines.build_profiles(remaining, plugins.registry([]), source="h.yaml").by_name
    assert [plugin.name for plugin in profiles["*"].plugins] == expected


SECOND = "profiles: [{schedulerName: x}, {%s}]"


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        pytest.param(
            SECOND % "pluginConfig: [{name: delay}, {name: sticky}]",
            ["sticky"],
            "h.yaml: profiles[1].pluginConfig[1].name: 'sticky' is disabled by "
            "--disable-plugin: add the component manifests/kubevirt, which grants the "
            "rights that it needs, or remove it from the configuration",
            id="configured",
        ),
        pytest.param(
            SECOND % "plugins: {enabled: [{name: delay}]}",
            ["delay"],
            "h.yaml: profiles[1].plugins.enabled[0].name: 'delay' is disabled by "
            "--disable-plugin: remove one of the two",
            id="enabled",
        ),
        pytest.param(
            "",
            ["stiky"],
            "--disable-plugin[0].name: unknown plugin 'stiky': did you mean sticky?",
            id="unknown",
        ),
        pytest.param(
            "",
            ["sticky", "sticky"],
            "--disable-plugin[1].name: 'sticky' is listed twice: remove one",
            id="twice",
        ),
    ],
)
def test_invalid_or_conflicting_disabled_plugin_is_rejected(
    text: str, names: list[str], expected: str
) -> None:
    configuration = config.parse(f"{HEAD}{text}".encode(), "h.yaml")
    with pytest.raises(ConfigurationError) as caught:
        config.without(configuration, names, plugins.registry([]), source="h.yaml")
    assert str(caught.value) == expected
