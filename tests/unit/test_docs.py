"""The pages say what the code does, and their links lead somewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs import error_cases, generate, rights
from tests.e2e.needs import NEEDS
from tests.unit.builders import make_pipeline
from tests.unit.delay_values import DELAYS, INSTANTS, Row
from webhook import config, events, guard, plugins, values
from webhook.pipeline import Pipeline
from webhook.rules import Rule

ROOT = Path(generate.__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
WRITTEN = [*PAGES, *(ROOT / name for name in OTHERS if (ROOT / name).exists())]

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Give what stands under a heading of the second level."""
    return read(page).split(f"\n## {heading}\n")[1].split("\n## ")[0]


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


# --- generated parts ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert read(page) == generate.rendered(page), f"run: {generate.COMMAND}"


@pytest.mark.parametrize("file", generate.FILES)
def test_generated_files_are_up_to_date(file: str) -> None:
    assert read(file) == generate.FILES[file](), f"run: {generate.COMMAND}"


@pytest.mark.parametrize(
    ("heading", "rows"),
    [pytest.param("Delays", DELAYS, id="delays"), pytest.param("Times", INSTANTS, id="times")],
)
def test_every_value_of_the_tests_own_table_is_on_the_page(
    heading: str, rows: tuple[Row, ...]
) -> None:
    shown = section("reference/annotations.md", heading)
    assert shown.count("\n| `") == len(rows)
    assert [row for row in rows if f"| `{values.shown(row.value)}` |" not in shown] == []


def test_a_missing_marker_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "reference" / "cli.md"
    page.parent.mkdir()
    page.write_text("no markers")
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    with pytest.raises(LookupError, match=r"docs/reference/cli\.md lacks the lines .*commands:end"):
        generate.rendered("reference/cli.md")


# --- configuration -----------------------------------------------------------------------------


def example() -> str:
    shown = section("reference/configuration.md", "A full example")
    (found,) = re.findall(r"```yaml\n(.*?)```", shown, re.DOTALL)
    return str(found)


def test_the_example_of_a_configuration_is_one() -> None:
    parsed = config.parse(example().encode(), "configuration.md")
    pipeline = config.build_pipeline(
        parsed,
        plugins.registry([]),
        source="configuration.md",
        timer=lambda: 0.0,
        observe=lambda **_: None,
    )
    assert isinstance(pipeline, Pipeline)
    assert list(pipeline.profiles) == ["batch-scheduler", "*"]


RULES = re.findall(r"```yaml\n(.*?)```", read("how-to/place-by-kind.md"), re.DOTALL)


@pytest.mark.parametrize("text", RULES, ids=range(len(RULES)))
def test_the_example_of_rules_is_a_configuration(text: str) -> None:
    config.build_pipeline(
        config.parse(text.encode(), "place-by-kind.md"),
        plugins.registry([]),
        source="place-by-kind.md",
        timer=lambda: 0.0,
        observe=lambda **_: None,
    )


def test_every_field_of_a_rule_is_on_the_page() -> None:
    listed = re.findall(r"^\| (.+?) \|", read("how-to/place-by-kind.md"), re.M)
    fields = set(re.findall(r"`(\w+)`", " ".join(listed)))
    assert set(Rule.__struct_encode_fields__) - fields == set()


def test_the_example_has_every_field() -> None:
    fields = re.findall(r"^\| `(\w+)` \|", section("reference/configuration.md", "The file"), re.M)
    assert [name for name in fields if f"{name}:" not in example()] == []


def test_the_example_names_every_argument_of_every_plugin_it_configures() -> None:
    configured = yaml.safe_load(example())["profiles"][0]["pluginConfig"]
    for each in configured:
        args_type = plugins.registry([])[each["name"]].args_type
        assert sorted(each["args"]) == sorted(args_type.__struct_encode_fields__)


def test_the_manifests_in_the_how_to_are_readable_pods() -> None:
    found = re.findall(r"```yaml\n(.*?)```", read("how-to/delay.md"), re.DOTALL)
    kinds = [yaml.safe_load(one)["kind"] for one in found]
    assert kinds == ["Deployment", "Pod"]


# --- metrics and Events ------------------------------------------------------------------------


def metrics() -> Iterator[tuple[str, str]]:
    for registry in generate.REGISTRIES.values():
        for name, kind, _, _ in generate.described_metrics(registry()):
            yield name, kind


@pytest.mark.parametrize("registry", generate.REGISTRIES)
def test_every_metric_is_described(registry: str) -> None:
    exposed = generate.REGISTRIES[registry]()
    described = [name for name, *_ in generate.described_metrics(exposed)]
    collected = [metric.name for metric in exposed.collect()]
    assert [re.sub("_(total|info)$", "", name) for name in described] == collected


@pytest.mark.parametrize("name", sorted({name for name, _ in metrics()}))
def test_every_metric_has_a_use(name: str) -> None:
    assert name in section("reference/metrics.md", "What to use them for")


def test_no_metric_on_the_pages_is_made_up() -> None:
    known = {name for name, _ in metrics()}
    known |= {
        f"{name}_{series}"
        for name, kind in metrics()
        if kind == "histogram"
        for series in ("bucket", "sum", "count")
    }
    used = {
        found
        for path in WRITTEN
        for found in re.findall(r"\bholdfast_[a-z_]+\b", path.read_text(encoding="utf-8"))
    }
    assert used - known == {"holdfast_approval"}  # the example plugin's module


def test_every_event_is_on_the_page_and_no_other() -> None:
    reasons = {
        value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)
    }
    described = re.findall(r"^\| `(\w+)` \|", read("reference/events.md"), re.MULTILINE)
    assert set(described) == reasons
    assert len(described) == len(reasons)


def test_every_logger_is_on_the_page_and_no_other() -> None:
    code = "".join(path.read_text() for path in (ROOT / "webhook").rglob("*.py"))
    named = set(re.findall(r'getLogger\("(holdfast\.\w+)"\)', code))
    described = re.findall(r"^\| \w+ \| `(holdfast\.\w+)` \|", read("reference/logs.md"), re.M)
    assert set(described) == named


# --- errors ------------------------------------------------------------------------------------

CASES = [
    pytest.param(case, id=f"{title}: {case.cause}")
    for title, cases in error_cases.CASES.items()
    for case in cases
]


@pytest.mark.parametrize("case", CASES)
def test_message_is_produced_on_one_line_and_is_on_the_page(case: error_cases.Case) -> None:
    message = case.produce()
    assert message.replace("…", "").isprintable()
    assert generate.error(case) in read("reference/errors.md"), f"run: {generate.COMMAND}"


def test_nothing_is_said_twice() -> None:
    messages = [case.produce() for cases in error_cases.CASES.values() for case in cases]
    assert sorted(set(messages)) == sorted(messages)


def test_the_guards_refusal_is_the_one_in_the_how_to() -> None:
    policy = make_policy()
    page = read("how-to/guard.md")
    parts = re.findall(r"'([^'\\]*)'", policy.replace("\\'", "\0"))
    assert len(parts) > 5
    assert [part for part in parts if part.replace("\0", "'") not in page] == []


def make_policy() -> str:
    first = guard.policies(make_pipeline())[0]
    return str(first["spec"]["validations"][0]["messageExpression"])


# --- all pages ---------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Give the anchors that a page's headings have on the usual hosting pages."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {slug.strip().replace(" ", "-") for slug in slugs}


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_relative_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            dead.append(target)
    assert dead == []


def test_every_module_has_its_line_in_contributing() -> None:
    rooms = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = [path.name for path in (ROOT / "webhook").glob("*.py") if path.name[0] != "_"]
    assert [name for name in sorted(modules) if f"{name}`" not in rooms] == []


@pytest.mark.parametrize("path", PAGES, ids=names(PAGES))
def test_every_page_is_on_the_map(path: Path) -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert path == index or path in linked


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_tests_that_are_named_exist(path: Path) -> None:
    missing = [
        f"{file}::{name}"
        for file, name in TEST.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_no_page_knows_the_machine_on_which_it_was_written(path: Path) -> None:
    found = re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S+", path.read_text())
    assert found == []


# --- rights --------------------------------------------------------------------------------------


def test_every_role_of_the_manifests_is_in_the_reference() -> None:
    found = {
        f"{one['kind']} {one['metadata']['name']}"
        for path in (ROOT / "manifests").rglob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one and one.get("kind") in {"Role", "ClusterRole"}
    }
    assert {title.partition(",")[0] for title, _ in rights.roles()} == found


def test_a_rule_without_its_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(rights.MANIFESTS, tmp_path / "manifests")
    path = tmp_path / "manifests" / rights.FILES[0]
    path.write_text(
        re.sub(r"  # finds held pods.*?\n  - api", "  - api", path.read_text(), flags=re.S)
    )
    monkeypatch.setattr(rights, "MANIFESTS", tmp_path / "manifests")
    with pytest.raises(LookupError, match=r"rbac/controller\.yaml: write a comment"):
        list(rights.roles())


def test_every_right_of_the_manifests_is_missed_by_a_test_of_its_own() -> None:
    given = sorted(map(str, rights.rights()))
    assert sorted(NEEDS) == given
    assert len(set(given)) == len(given)


def test_what_a_right_is_called() -> None:
    secret = rights.Right("Role", "holdfast-controller", "", "secrets", "get", "holdfast-ca")
    nodes = rights.Right("ClusterRole", "holdfast-controller-kubevirt", "", "nodes", "get", "")
    assert [str(secret), str(nodes)] == [
        "controller: get secrets holdfast-ca",
        "controller: get nodes",
    ]
