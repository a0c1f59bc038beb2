from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import Measured, make_pipeline
from tests.unit.scripted import Extra, Other
from webhook import config, plugins, values
from webhook.errors import ConfigurationError
from webhook.framework import Args, Handle, PluginClass
from webhook.plugins.delay import Delay

HEAD = "apiVersion: holdfast.dev/v1alpha1\nkind: HoldfastConfiguration\n"
SEE = "; docs/reference/configuration.md lists what is accepted"
BEGIN = "begin with 'apiVersion: holdfast.dev/v1alpha1', 'kind: HoldfastConfiguration'"


def refusal(text: str | bytes, *, known: Any = None) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigurationError) as caught:
        config.build_pipeline(
            config.parse(content, "h.yaml"),
            known or plugins.registry([]),
            source="h.yaml",
            timer=lambda: 0.0,
            observe=Measured(),
        )
    return str(caught.value)


def of_delay(args: str) -> str:
    return f"profiles: [{{pluginConfig: [{{name: delay, args: {{{args}}}}}]}}]"


def test_example_of_the_design() -> None:
    pipeline = make_pipeline(
        """
profiles:
- schedulerName: "*"
  plugins:
    enabled: [{name: delay}]
  pluginConfig:
  - name: delay
    args: {annotations: [holdfast.dev/delay, delay], maxDelay: 168h, onInvalid: reject}
"""
    )

    assert list(pipeline.profiles) == ["*"]
    assert pipeline.profiles["*"].plugins[0].name == "delay"
    assert pipeline.profiles["*"].run_all


def test_defaults_are_what_an_empty_file_says() -> None:
    assert config.load(None) == config.parse(HEAD.encode(), "x")
    assert list(make_pipeline().profiles) == ["*"]
    assert isinstance(make_pipeline().profiles["*"].plugins[0], Delay)


def test_profiles_have_arguments_of_their_own() -> None:
    pipeline = make_pipeline(
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

    keys = {name: [p.keys[0] for p in one.plugins] for name, one in pipeline.profiles.items()}
    assert keys == {"a": ["a.io/wait"], "b": [], "*": ["holdfast.dev/delay"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", f"h.yaml: is no mapping; {BEGIN}", id="empty"),
        pytest.param("- a", f"h.yaml: is no mapping; {BEGIN}", id="a list"),
        pytest.param(
            "kind: HoldfastConfiguration",
            "h.yaml: apiVersion: None is not supported; write holdfast.dev/v1alpha1",
            id="no apiVersion",
        ),
        pytest.param(
            "apiVersion: v1",
            "h.yaml: apiVersion: 'v1' is not supported; write holdfast.dev/v1alpha1",
            id="another apiVersion",
        ),
        pytest.param(
            "apiVersion: holdfast.dev/v1alpha1\nkind: Pod",
            "h.yaml: kind: 'Pod' is not supported; write HoldfastConfiguration",
            id="another kind",
        ),
        pytest.param(
            HEAD + "profile: []",
            "h.yaml: there is no field 'profile' here; did you mean profiles?",
            id="an unknown field",
        ),
        pytest.param(
            HEAD + "profiles: {}",
            "h.yaml: profiles: Expected `array`, got `object`" + SEE,
            id="a mapping for a list",
        ),
        pytest.param(
            HEAD + "profiles: []",
            "h.yaml: profiles: is empty; add one, or leave the key out",
            id="no profile",
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerName: 5}]",
            "h.yaml: profiles[0].schedulerName: Expected `str`, got `int`" + SEE,
            id="a number for a name",
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerName: ''}]",
            "h.yaml: profiles[0].schedulerName: is empty; name a scheduler, or write '*'",
            id="an empty name",
        ),
        pytest.param(
            HEAD + "profiles: [{}, {schedulerName: '*'}]",
            "h.yaml: profiles[1].schedulerName: '*' has a profile already; merge the two",
            id="a profile twice",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {enabled: [{name: dely}]}}]",
            "h.yaml: profiles[0].plugins.enabled[0].name: no plugin is named 'dely'; "
            "did you mean delay?",
            id="a misspelt plugin",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {enabled: [{name: delay}, {name: delay}]}}]",
            "h.yaml: profiles[0].plugins.enabled[1].name: 'delay' is enabled twice; enable it once",
            id="a plugin twice",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {enabled: [delay]}}]",
            "h.yaml: profiles[0].plugins.enabled[0]: Expected `object`, got `str`" + SEE,
            id="a bare name",
        ),
        pytest.param(
            HEAD + "profiles: [{pluginConfig: [{name: Delay}]}]",
            "h.yaml: profiles[0].pluginConfig[0].name: no plugin is named 'Delay'; "
            "did you mean delay?",
            id="a configuration of no plugin",
        ),
        pytest.param(
            HEAD + "profiles: [{pluginConfig: [{name: delay}, {name: delay}]}]",
            "h.yaml: profiles[0].pluginConfig[1].name: 'delay' is configured twice; merge the two",
            id="a configuration twice",
        ),
        pytest.param(
            HEAD + of_delay("maxdelay: 1h"),
            "h.yaml: profiles[0].pluginConfig[0].args: there is no field 'maxdelay' here; "
            "did you mean maxDelay?",
            id="an unknown argument",
        ),
        pytest.param(
            HEAD + of_delay("maxDelay: 5"),
            "h.yaml: profiles[0].pluginConfig[0].args.maxDelay: Expected `str`, got `int`" + SEE,
            id="a number for a duration",
        ),
        pytest.param(
            HEAD + of_delay("maxDelay: 7d"),
            'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: "7d" is no duration; '
            + values.DELAY_ACCEPTED,
            id="an unreadable duration",
        ),
        pytest.param(
            HEAD + of_delay("onInvalid: refuse"),
            "h.yaml: profiles[0].pluginConfig[0].args.onInvalid: Invalid enum value 'refuse'" + SEE,
            id="an unknown choice",
        ),
        pytest.param(
            HEAD + of_delay("annotations: []"),
            "h.yaml: profiles[0].pluginConfig[0].args.annotations: is empty; "
            "name at least one annotation",
            id="no annotation",
        ),
        pytest.param(
            HEAD + of_delay("annotations: [a, a]"),
            "h.yaml: profiles[0].pluginConfig[0].args.annotations: a key is named twice; "
            "name it once",
            id="an annotation twice",
        ),
        pytest.param(
            HEAD + of_delay("annotations: [holdfast.dev/held]"),
            "h.yaml: profiles[0].pluginConfig[0].args.annotations: 'holdfast.dev/held' has another "
            "meaning; choose another",
            id="an annotation of ours",
        ),
        pytest.param(
            HEAD + of_delay("annotations: ['a b']"),
            'h.yaml: profiles[0].pluginConfig[0].args.annotations: "a b" is no annotation key; '
            "write one such as example.com/delay",
            id="an impossible annotation",
        ),
        pytest.param(
            HEAD + of_delay("annotations: [Example.com/delay]"),
            'h.yaml: profiles[0].pluginConfig[0].args.annotations: "Example.com/delay" is no '
            "annotation key; write one such as example.com/delay",
            id="an annotation whose domain is none",
        ),
        pytest.param(
            HEAD + of_delay("zzz: 1"),
            "h.yaml: profiles[0].pluginConfig[0].args: there is no field 'zzz' here" + SEE,
            id="an argument like no other",
        ),
        pytest.param(
            HEAD + "profiles: [{pluginConfig: [{nam: delay}]}]",
            "h.yaml: profiles[0].pluginConfig[0]: there is no field 'nam' here; did you mean name?",
            id="an unknown field within",
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerNames: x}]",
            "h.yaml: profiles[0]: there is no field 'schedulerNames' here; "
            "did you mean schedulerName?",
            id="an unknown field of a profile",
        ),
        pytest.param(
            HEAD + "profiles: [{runAllFilters: 'no'}]",
            "h.yaml: profiles[0].runAllFilters: Expected `bool`, got `str`" + SEE,
            id="a word for a switch",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {disabled: [{name: dely}]}}]",
            "h.yaml: profiles[0].plugins.disabled[0].name: no plugin is named 'dely'; "
            "did you mean delay?",
            id="a misspelt plugin is disabled",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {disabled: [{name: '*'}, {name: '*'}]}}]",
            "h.yaml: profiles[0].plugins.disabled[1].name: '*' is disabled twice; disable it once",
            id="all plugins disabled twice",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {enabled: [{name: '*'}]}}]",
            "h.yaml: profiles[0].plugins.enabled[0].name: no plugin is named '*'; did you mean "
            f"{' or '.join(sorted(plugins.registry([])))}?",
            id="all plugins enabled",
        ),
        pytest.param(
            HEAD + "profiles: [{plugins: {disabled: [{name: delay}]}, pluginConfig: "
            "[{name: delay, args: {maxDelay: 7d}}]}]",
            'h.yaml: profiles[0].pluginConfig[0].args.maxDelay: "7d" is no duration; '
            + values.DELAY_ACCEPTED,
            id="arguments of a plugin that is not enabled",
        ),
        pytest.param(
            HEAD + "kind: Pod",
            "h.yaml: is no YAML: 'kind' stands here twice; keep one "
            'in "<byte string>", line 3, column 1: kind: Pod ^',
            id="a key twice",
        ),
        pytest.param(
            "a: &x 1\nb: *x",
            "h.yaml: is no YAML: aliases are not supported; write the value out "
            'in "<byte string>", line 2, column 4: b: *x ^',
            id="an alias",
        ),
        pytest.param(
            "? [a]\n: b",
            'h.yaml: is no YAML: while constructing a mapping in "<byte string>", line 1, '
            'column 1: ? [a] ^ found unhashable key in "<byte string>", line 1, column 3: ? [a] ^',
            id="a list for a key",
        ),
        pytest.param(
            "a: b: c",
            "h.yaml: is no YAML: mapping values are not allowed here "
            'in "<byte string>", line 1, column 5: a: b: c ^',
            id="broken YAML",
        ),
    ],
)
def test_error(text: str, expected: str) -> None:
    assert expected == refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"a: \xff", id="no UTF-8"),
        pytest.param(b"\x00", id="NUL"),
        pytest.param(b"[" * 5_000, id="deep lists"),
        pytest.param(b"{" * 5_000, id="deep mappings"),
        pytest.param(b"? [a]\n: b", id="a list for a key"),
        pytest.param(b"? {a: b}\n: c", id="a mapping for a key"),
        pytest.param(b"a: 2026-99-99", id="an impossible date"),
        pytest.param(b"a: " + b"9" * 5_000, id="a huge number"),
        pytest.param(b"a: !!timestamp x", id="a tag that does not fit: timestamp"),
        pytest.param(b"a: !!bool x", id="a tag that does not fit: bool"),
        pytest.param(b"a: !!int ''", id="a tag that does not fit: int"),
        pytest.param(b"a: !!python/object/apply:os.system [x]", id="a tag of Python"),
        pytest.param(b"a: 1\n---\nb: 2", id="two documents"),
    ],
)
def test_what_is_no_yaml_is_told_on_one_line(text: bytes) -> None:
    message = refusal(text)

    assert message.startswith("h.yaml: is no YAML: ")
    assert message.isprintable()


def test_load_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles: [{schedulerName: mine}]")

    assert config.load(file).profiles[0].scheduler_name == "mine"


def test_load_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.load(tmp_path / "none.yaml")

    assert f"{tmp_path}/none.yaml: cannot be read ({os.strerror(2)}); give a readable file to " in (
        str(caught.value)
    )


def test_load_of_a_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    file.write_bytes(b"#" * (config.SIZE_LIMIT + 1))
    with pytest.raises(ConfigurationError) as caught:
        config.load(file)

    assert f"{file}: is larger than 1 MiB; shorten it" == str(caught.value)


# --- which plugins a profile has, and how they are made ----------------------------------------


class Second(Other):
    """A stand-in for the default plugin that runs behind delay."""

    name = "placement"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        super().__init__()


class Third(Second):
    name = "third"


class Broken(Second):
    """A third party's plugin that cannot be made."""

    name = "broken"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        raise LookupError("no luck")


class Choosy(Second):
    """A third party's plugin that wants to be told more."""

    name = "choosy"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        raise ConfigurationError("rules: is empty; write one")


FOUND: tuple[PluginClass, ...] = (Third, Second, Delay, Broken, Choosy, Extra)
KNOWN = {one.name: one for one in FOUND}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param("", ["delay", "placement"], id="nothing said"),
        pytest.param("enabled: []", ["delay", "placement"], id="nothing more"),
        pytest.param("enabled: [{name: third}]", ["delay", "placement", "third"], id="one more"),
        pytest.param(
            "enabled: [{name: third}, {name: delay}]",
            ["delay", "placement", "third"],
            id="a default one is there already",
        ),
        pytest.param("disabled: [{name: delay}]", ["placement"], id="one less"),
        pytest.param("disabled: [{name: third}]", ["delay", "placement"], id="not there anyway"),
        pytest.param("disabled: [{name: '*'}]", [], id="none"),
        pytest.param(
            "disabled: [{name: '*'}, {name: delay}], enabled: [{name: third}, {name: delay}]",
            ["third", "delay"],
            id="others alone, in their order",
        ),
        pytest.param(
            "disabled: [{name: delay}], enabled: [{name: delay}]",
            ["placement", "delay"],
            id="a default one at another place",
        ),
    ],
)
def test_plugins_of_a_profile(listed: str, expected: list[str]) -> None:
    pipeline = make_pipeline(f"profiles: [{{plugins: {{{listed}}}}}]", known=KNOWN)

    assert expected == [plugin.name for plugin in pipeline.profiles["*"].plugins]


def test_default_plugins_that_are_not_there_are_not_missed() -> None:
    pipeline = make_pipeline(known={"delay": Delay})

    assert [plugin.name for plugin in pipeline.profiles["*"].plugins] == ["delay"]


def test_first_refusal_alone_can_be_asked_for() -> None:
    assert not make_pipeline("profiles: [{runAllFilters: false}]").profiles["*"].run_all


EXTRA = "plugins: {enabled: [{name: extra}]}"


def test_factory_gets_its_arguments_and_the_handle() -> None:
    handle = Handle()
    pipeline = make_pipeline(
        f"profiles: [{{{EXTRA}, pluginConfig: [{{name: extra, args: {{must: 5}}}}]}}]",
        known=KNOWN,
        handle=handle,
    )

    plugin = pipeline.profiles["*"].plugins[-1]
    assert isinstance(plugin, Extra)
    assert plugin.args == Extra.ExtraArgs(must=5)
    assert plugin.handle is handle


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param(
            "plugins: {enabled: [{name: broken}]}",
            'pluginConfig[broken].args: initializing plugin "broken": no luck',
            id="cannot be made",
        ),
        pytest.param(
            "pluginConfig: [{name: broken}]",
            'pluginConfig[0].args: initializing plugin "broken": no luck',
            id="cannot be made, configured",
        ),
        pytest.param(
            "plugins: {enabled: [{name: choosy}]}",
            "pluginConfig[choosy].args.rules: is empty; write one",
            id="wants more",
        ),
        pytest.param(
            EXTRA,
            f"pluginConfig[extra].args: Object missing required field `must`{SEE}",
            id="wants an argument",
        ),
        pytest.param(
            "pluginConfig: [{name: extra, args: {must: 1, mai: x}}]",
            "pluginConfig[0].args: there is no field 'mai' here; did you mean may?",
            id="an unknown argument",
        ),
    ],
)
def test_plugin_that_cannot_be_made_is_named(profile: str, expected: str) -> None:
    assert f"h.yaml: profiles[0].{expected}" == refusal(
        HEAD + f"profiles: [{{{profile}}}]", known=KNOWN
    )
