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
from holdfast.webhook.model.annotations import Due
from holdfast.webhook.model.objects import Pod
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.runtime import pipelines
from tests.support import config_cases
from tests.support.builders import make_profiles
from tests.support.config_cases import HEAD, SEE
from tests.support.scripted import Extra, Other


def refusal(text: str | bytes, *, known: Any = None) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigurationError) as caught:
        pipelines.build_profiles(
            config.parse(content, "h.yaml"), known or plugins.registry([]), source="h.yaml"
        )
    return str(caught.value)


def test_defaults_are_what_an_empty_file_says() -> None:
    assert config.load(None) == config.parse(HEAD.encode(), "x")
    assert list(make_profiles().by_name) == ["*"]
    assert isinstance(make_profiles().by_name["*"].plugins[0], Delay)


def test_profiles_have_arguments_of_their_own() -> None:
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

    keys = {name: [p.keys[0] for p in one.plugins] for name, one in profiles.by_name.items()}
    assert keys == {"a": ["a.io/wait"], "b": [], "*": ["holdfast.dev/delay"]}


@pytest.mark.parametrize(("text", "expected"), config_cases.FILES)
def test_error(text: str, expected: str) -> None:
    assert expected == refusal(text)


ENDLESS = "\u23f0" * 5_000


@pytest.mark.parametrize(
    ("text", "end"),
    [
        pytest.param(
            HEAD + config_cases.of_delay(f"onInvalid: {ENDLESS}"),
            f"{ENDLESS[:9]}': use ignore or reject",
            id="a choice",
        ),
        pytest.param(f"a: !{'x' * 5_000} 1", "... ^", id="a tag"),
        pytest.param(
            f"? {ENDLESS}\n: 1\n? {ENDLESS}\n: 2\n", "... ^", id="a key that is there twice"
        ),
        pytest.param(f"a: !!float {ENDLESS}", f"{ENDLESS[:9]}'", id="a number"),
        pytest.param(
            HEAD + f"profiles:\n- schedulerName: {ENDLESS}\n- schedulerName: {ENDLESS}\n",
            "merge them",
            id="a profile that is there twice",
        ),
    ],
)
def test_what_is_wrong_is_told_shortly_however_long_it_is(text: str, end: str) -> None:
    message = refusal(text)

    assert len(message) < 600
    assert message.endswith(end)


def test_no_field_is_offered_for_itself() -> None:
    """A toleration has a `value`; a rule's condition has none."""
    rule = "{name: a, when: {annotation: a, value: b}}"
    named = f"profiles: [{{pluginConfig: [{{name: placement, args: {{rules: [{rule}]}}}}]}}]"

    assert refusal(HEAD + named).endswith(
        "rules[0].when: unknown field 'value': use annotation, equals, exists, in, label, "
        "namespaces"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"a: \xff", id="no UTF-8"),
        pytest.param(b"[" * 5_000, id="deep lists"),
        pytest.param(b"? {a: b}\n: c", id="a mapping for a key"),
        pytest.param(b"a: !!timestamp 2026-99-99", id="an impossible date"),
        pytest.param(b"a: " + b"9" * 5_000, id="a huge number"),
        pytest.param(b"a: !!timestamp x", id="a tag that does not fit: timestamp"),
        pytest.param(b"a: !!python/object/apply:os.system [x]", id="a tag of Python"),
        pytest.param("{\ufeffa: 1}]".encode(), id="a byte order mark in the middle"),
        pytest.param(b"a: 1\n---\nb: 2", id="two documents"),
    ],
)
def test_what_is_no_yaml_is_told_on_one_line(text: bytes) -> None:
    message = refusal(text)

    assert message.startswith("h.yaml: invalid YAML: ")
    assert message.isprintable()


YAML = "{}[]&*!|>-:,?'\" \n\t#%@`ab0.<~"


@given(st.binary(max_size=40) | st.text(YAML, max_size=40).map(str.encode))
def test_any_file_is_refused_on_one_line(content: bytes) -> None:
    assert refusal(content).isprintable()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("profiles: " + "[" * 2**19, id="a file full of brackets"),
        pytest.param("profiles:\n" + "- {}\n" * 2**12, id="a file full of profiles"),
        pytest.param("profiles: [{schedulerName: " + "x" * 2**19 + ", a: 1}]", id="a long name"),
        pytest.param("\n".join(f"k{n}: 1" for n in range(2**12)), id="a file full of keys"),
    ],
)
def test_hostile_file_is_refused_in_a_short_line(text: str) -> None:
    assert len(refusal(HEAD + text)) < 1_000


def test_file_of_the_version_before_is_read_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = (HEAD + "profiles: [{schedulerName: batch}]").encode()
    old = text.replace(b"v1beta1", b"v1alpha1")
    assert config.digest(config.parse(old, "h.yaml")) == config.digest(config.parse(text, "h.yaml"))
    assert caplog.messages == [
        "h.yaml: apiVersion holdfast.dev/v1alpha1 is deprecated: use holdfast.dev/v1beta1"
    ]


def test_load_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(HEAD + "profiles: [{schedulerName: mine}]")

    assert config.load(file).profiles[0].scheduler_name == "mine"


def test_load_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config.load(tmp_path / "none.yaml")

    assert f"{tmp_path}/none.yaml: cannot be read ({os.strerror(2)}): name a readable file" in (
        str(caught.value)
    )


def test_load_of_a_huge_file(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    file.write_bytes(b"#" * (safe_yaml.SIZE_LIMIT + 1))
    with pytest.raises(ConfigurationError) as caught:
        config.load(file)

    assert f"{file}: is larger than 1 MiB: shorten it" == str(caught.value)


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
    """A third party's plugin that rejects its arguments."""

    name = "choosy"

    def __init__(self, _args: Args, _handle: Handle) -> None:
        raise ConfigurationError("rules: must not be empty: add one")


class Detaining(Second):
    """A third party's plugin that holds pods."""

    name = "holding"
    gate: ClassVar[str] = "holdfast.dev/holding"

    def due(self, pod: Pod) -> Due:
        return Due(pod.created_ms)


FOUND: tuple[type[Plugin], ...] = (Third, Second, Delay, Broken, Choosy, Extra)
KNOWN = {one.name: one for one in FOUND}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param("", ["delay", "placement"], id="nothing said"),
        pytest.param("enabled: [{name: third}]", ["delay", "placement", "third"], id="one more"),
        pytest.param(
            "enabled: [{name: third}, {name: delay}]",
            ["delay", "placement", "third"],
            id="a default one is there already",
        ),
        pytest.param("disabled: [{name: delay}]", ["placement"], id="one less"),
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
        pytest.param("", "", id="as by default"),
        pytest.param("enabled: [{name: holding}]", "holding", id="a plugin of a third party"),
        pytest.param(
            "disabled: [{name: placement}], enabled: [{name: holding}, {name: placement}]",
            "",
            id="as the error says",
        ),
        pytest.param(
            "disabled: [{name: delay}], enabled: [{name: delay}]", "delay", id="the delay"
        ),
    ],
)
@pytest.mark.parametrize("late", [True, False], ids=["left for the release", "at creation"])
def test_who_holds_pods_runs_before_what_is_left_for_their_release(
    listed: str, holder: str, *, late: bool
) -> None:
    args = f"{{name: placement, args: {{rules: [{LATE}]}}}}"
    configured = f"pluginConfig: [{args if late else ''}], plugins: {{{listed}}}"
    text = f"{HEAD}profiles: [{{{configured}}}]"
    known: dict[str, type[Plugin]] = {**plugins.registry([]), "holding": Detaining}

    if late and holder:
        assert refusal(text, known=known) == HOLDS_TOO_LATE.format(holder)
    else:
        make_profiles(text.removeprefix(HEAD), known=known)


def test_default_plugins_that_are_not_there_are_not_missed() -> None:
    profiles = make_profiles(known={"delay": Delay})

    assert [plugin.name for plugin in profiles.by_name["*"].plugins] == ["delay"]


def test_run_all_filters_is_on_by_default_and_can_be_turned_off() -> None:
    assert make_profiles().by_name["*"].run_all
    assert not make_profiles("profiles: [{runAllFilters: false}]").by_name["*"].run_all


def test_permit_timeout() -> None:
    assert make_profiles("profiles: [{}]").by_name["*"].permit_timeout_ms is None
    made = make_profiles('profiles: [{permitTimeout: "10m"}]')
    assert made.by_name["*"].permit_timeout_ms == 600_000
    with pytest.raises(ConfigurationError, match=r"profiles\[0\].permitTimeout: "):
        make_profiles('profiles: [{permitTimeout: "999999999h"}]')


EXTRA = "plugins: {enabled: [{name: extra}]}"


def test_factory_gets_its_arguments_and_the_handle() -> None:
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
            id="cannot be made",
        ),
        pytest.param(
            "plugins: {enabled: [{name: choosy}]}",
            "pluginConfig[choosy].args.rules: must not be empty: add one",
            id="wants more",
        ),
        pytest.param(
            EXTRA,
            f"pluginConfig[extra].args: Object missing required field `must`{SEE}",
            id="wants an argument",
        ),
        pytest.param(
            "pluginConfig: [{name: extra, args: {must: 1, mai: x}}]",
            "pluginConfig[0].args: unknown field 'mai': did you mean may?",
            id="an unknown argument",
        ),
    ],
)
def test_plugin_that_cannot_be_made_is_named(profile: str, expected: str) -> None:
    assert f"h.yaml: profiles[0].{expected}" == refusal(
        HEAD + f"profiles: [{{{profile}}}]", known=KNOWN
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "profiles: [{schedulerName: x}, {name: y, schedulerName: x}]",
            "profiles[1].schedulerName: 'x' has two profiles: merge them",
        ),
        (
            (
                "profiles: [{schedulerName: x, namespaces: [a, b]}, "
                "{name: y, schedulerName: x, namespaces: [b]}]"
            ),
            "profiles[1].schedulerName: 'x' has two profiles in namespace b: merge them",
        ),
        (
            "profiles: [{schedulerName: x}, {schedulerName: x, namespaces: [b]}]",
            "profiles[1].name: 'x' names two profiles: give each its own name",
        ),
        (
            "admission: {objectSelector: {matchExpressions: [{key: a, operator: In}]}}",
            (
                "admission.objectSelector.matchExpressions[0].values: operator In needs values: "
                "add some"
            ),
        ),
        (
            (
                "admission: {namespaceSelector: {matchExpressions: "
                "[{key: a, operator: Exists, values: [x]}]}}"
            ),
            (
                "admission.namespaceSelector.matchExpressions[0].values: operator Exists has no "
                "values: remove them"
            ),
        ),
    ],
)
def test_conflicts_of_profiles_and_selectors(text: str, expected: str) -> None:
    assert refusal(HEAD + text) == f"h.yaml: {expected}"


def test_configurations_that_say_the_same_have_the_same_digest() -> None:
    one = config.parse(f"{HEAD}profiles: [{{schedulerName: x}}]".encode(), "a")
    same = config.parse(f"# a remark\n{HEAD}profiles:\n- schedulerName: x\n".encode(), "b")
    other = config.parse(f"{HEAD}profiles: [{{schedulerName: y}}]".encode(), "c")
    assert config.digest(one) == config.digest(same)
    assert config.digest(one) != config.digest(other)


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        pytest.param(
            "",
            ["sticky"],
            ["delay", "window", "after", "pace", "approval", "placement"],
            id="the defaults",
        ),
        pytest.param(
            "profiles: [{plugins: {disabled: [{name: sticky}]}}]",
            ["sticky"],
            ["delay", "window", "after", "pace", "approval", "placement"],
            id="disabled already",
        ),
        pytest.param(
            "profiles: [{plugins: {disabled: [{name: '*'}]}}]", ["sticky"], [], id="all disabled"
        ),
    ],
)
def test_plugins_that_an_installation_lacks(
    text: str, names: list[str], expected: list[str]
) -> None:
    whole = config.parse(f"{HEAD}{text}".encode(), "h.yaml")
    left = config.without(whole, names, plugins.registry([]), source="h.yaml")
    profiles = pipelines.build_profiles(left, plugins.registry([]), source="h.yaml").by_name
    assert [one.name for one in profiles["*"].plugins] == expected


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
def test_who_configures_what_an_installation_lacks_is_told(
    text: str, names: list[str], expected: str
) -> None:
    whole = config.parse(f"{HEAD}{text}".encode(), "h.yaml")
    with pytest.raises(ConfigurationError) as caught:
        config.without(whole, names, plugins.registry([]), source="h.yaml")
    assert str(caught.value) == expected
