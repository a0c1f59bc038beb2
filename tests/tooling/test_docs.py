"""The pages match the code, and their links resolve."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs import generate, rights
from holdfast.webhook import plugins
from holdfast.webhook.config import config
from holdfast.webhook.kube import events
from holdfast.webhook.plugins.pace import slots as pace_slots
from holdfast.webhook.policies import pods as pod_policies
from holdfast.webhook.runtime import pipelines
from tests.e2e.needs import NEEDS
from tests.support.builders import make_profiles

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
    """Return the text under a second-level heading."""
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


# --- configuration -----------------------------------------------------------------------------


def example() -> str:
    text = section("reference/configuration.md", "A full example")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return str(block)


def test_example_configuration_is_valid() -> None:
    parsed = config.parse(example().encode(), "configuration.md")
    profiles = pipelines.build_profiles(parsed, plugins.registry([]), source="configuration.md")
    assert list(profiles.by_name) == ["batch", "*"]


RULES = re.findall(r"```yaml\n(.*?)```", read("how-to/place-by-kind.md"), re.DOTALL)


@pytest.mark.parametrize("text", RULES, ids=range(len(RULES)))
def test_example_of_rules_is_valid(text: str) -> None:
    parsed = config.parse(text.encode(), "place-by-kind.md")
    pipelines.build_profiles(parsed, plugins.registry([]), source="place-by-kind.md")


def test_example_has_every_field() -> None:
    fields = re.findall(r"^\| `(\w+)` \|", section("reference/configuration.md", "The file"), re.M)
    assert [name for name in fields if f"{name}:" not in example()] == []


def test_example_has_every_argument_of_each_plugin_it_configures() -> None:
    configured = yaml.safe_load(example())["profiles"][0]["pluginConfig"]
    for entry in configured:
        args_type = plugins.registry([])[entry["name"]].args_type
        assert sorted(entry["args"]) == sorted(args_type.__struct_encode_fields__)


# --- metrics and Events ------------------------------------------------------------------------


MONITORING = ("dashboard.json", "rules.yaml")


def metrics() -> Iterator[tuple[str, str]]:
    for registry in generate.REGISTRIES.values():
        for name, kind, _, _ in generate.described_metrics(registry()):
            yield name, kind


@pytest.mark.parametrize("registry", generate.REGISTRIES)
def test_every_metric_is_described(registry: str) -> None:
    exposed = generate.REGISTRIES[registry]()
    exposed_names = [name for name, *_ in generate.described_metrics(exposed)]
    collected = [metric.name for metric in exposed.collect()]
    assert [re.sub("_(total|info)$", "", name) for name in exposed_names] == collected


@pytest.mark.parametrize("name", sorted({name for name, _ in metrics()}))
def test_every_metric_is_used_in_a_query(name: str) -> None:
    monitoring = [ROOT / "manifests" / "monitoring" / file for file in MONITORING]
    texts = [section("reference/metrics.md", "Queries"), *(file.read_text() for file in monitoring)]
    assert any(re.search(rf"\b{name}\b|\b{name}_(bucket|sum|count)\b", text) for text in texts)


def test_documented_metrics_exist() -> None:
    metric_names = {name for name, _ in metrics()}
    metric_names |= {
        f"{name}_{series}"
        for name, kind in metrics()
        if kind == "histogram"
        for series in ("bucket", "sum", "count")
    }
    used_names = {
        name
        for path in WRITTEN
        for name in re.findall(r"\bholdfast_[a-z_]+\b", path.read_text(encoding="utf-8"))
    }
    assert used_names - metric_names == {"holdfast_signoff"}  # the example plugin's module


def test_documented_events_match_the_code() -> None:
    reasons = {
        value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)
    }
    documented = re.findall(r"^\| `(\w+)` \|", read("reference/events.md"), re.MULTILINE)
    reasons.add(pace_slots.TIMEOUT)
    assert set(documented) == reasons
    assert len(documented) == len(reasons)


def test_documented_loggers_match_the_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "webhook").rglob("*.py"))
    loggers = set(re.findall(r'getLogger\("(holdfast\.\w+)"\)', code))
    documented = re.findall(r"^\| \w+ \| `(holdfast\.\w+)` \|", read("reference/logs.md"), re.M)
    assert set(documented) == loggers


def test_guard_message_matches_the_how_to() -> None:
    policy, page = pod_policies.policies(make_profiles())[0], read("how-to/guard.md")
    message = str(policy["spec"]["validations"][0]["messageExpression"])
    parts = re.findall(r"'([^'\\]*)'", message.replace("\\'", "\0"))
    assert len(parts) > 5
    assert [part for part in parts if part.replace("\0", "'") not in page] == []


# --- all pages ---------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as the usual hosts generate them."""
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {slug.strip().replace(" ", "-") for slug in slugs}


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_relative_links_resolve(path: Path) -> None:
    dead_links = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        destination = (path.parent / file).resolve() if file else path
        if not destination.exists() or (anchor and anchor not in anchors(destination)):
            dead_links.append(target)
    assert dead_links == []


def test_contributing_lists_every_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = sorted(path.parent.name for path in (ROOT / "webhook").glob("*/__init__.py"))
    assert [name for name in packages if f"`webhook/{name}/`" not in text] == []


@pytest.mark.parametrize("path", PAGES, ids=names(PAGES))
def test_every_page_is_linked_from_the_index(path: Path) -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert path == index or path in linked


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_referenced_tests_exist(path: Path) -> None:
    missing_tests = [
        f"{file}::{name}"
        for file, name in TEST.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / file).exists() or (name and f"def {name}(" not in (ROOT / file).read_text())
    ]
    assert missing_tests == []


@pytest.mark.parametrize("path", WRITTEN, ids=names(WRITTEN))
def test_pages_contain_no_local_paths(path: Path) -> None:
    paths = re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S+", path.read_text())
    assert paths == []


# --- permissions ---------------------------------------------------------------------------------


def test_every_role_in_the_manifests_is_documented() -> None:
    roles = {
        f"{document['kind']} {document['metadata']['name']}"
        for path in (ROOT / "manifests").rglob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
        if document and document.get("kind") in {"Role", "ClusterRole"}
    }
    assert {title.partition(",")[0] for title, _ in rights.roles()} == roles


def test_every_permission_has_a_test() -> None:
    permissions = sorted(map(str, rights.rights()))
    assert sorted(NEEDS) == permissions
    assert len(set(permissions)) == len(permissions)
