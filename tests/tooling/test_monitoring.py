"""The shipped alerts and dashboard query existing metrics, and each alert has a runbook."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest
import yaml

from docs import generate
from holdfast.webhook.framework.plugin import Code, Permit

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "monitoring"
RUNBOOK = (ROOT / "docs" / "how-to" / "respond-to-alerts.md").read_text(encoding="utf-8")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((FOLDER / "dashboard.json").read_text())["panels"])


def named_expressions() -> Iterator[Any]:
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


EXPRESSIONS = list(named_expressions())


def series() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for registry in generate.REGISTRIES.values():
        for name, kind, labels, _ in generate.described_metrics(registry()):
            own = set(labels) | ({"version"} if name == "holdfast_build_info" else set())
            own |= {"digest"} if name == "holdfast_configuration_info" else set()
            if kind == "histogram":
                found |= {f"{name}_{end}": own for end in ("sum", "count")}
                found[f"{name}_bucket"] = own | {"le"}
            else:
                found[name] = own
    return found


SERIES = series()
BASE = "https://holdfast.example.com"
TARGET_LABELS = {"cluster", "namespace"}
"""Labels that Prometheus adds to every series."""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_use_existing_metrics_and_labels(expression: str) -> None:
    asked = re.findall(r"\bholdfast_\w+", expression)
    assert asked
    assert [name for name in asked if name not in SERIES] == []
    known = set().union(*(SERIES[name] for name in asked))
    labels = re.findall(r"(\w+)\s*=~?\s*\"", expression)
    labels += re.split(r",\s*", ",".join(re.findall(r"\bby \(([^)]*)\)", expression)))
    assert {label for label in labels if label} <= known | TARGET_LABELS


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_are_valid_promql(expression: str) -> None:
    assert promql_parser.parse(expression).prettify()


def test_documented_statuses_exist() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    permits = {answer.__name__ for answer in get_args(Permit)}
    asked = set(re.findall(r'status="(\w+)"', page + " ".join(map(str, rules()))))
    assert {"Reject", "Error"} <= asked <= {*Code} | permits


def test_parser_rejects_what_prometheus_rejects() -> None:
    with pytest.raises(ValueError, match="expected type matrix"):
        promql_parser.parse("rate(holdfast_releases_total)")


@pytest.mark.parametrize("legend", [t["legendFormat"] for p in panels() for t in p["targets"]])
def test_legend_uses_existing_labels(legend: str) -> None:
    labels = set(re.findall(r"{{(\w+)}}", legend))
    assert labels <= set().union(*SERIES.values())


def test_alerts_and_runbooks_match() -> None:
    names = [rule["alert"] for rule in rules()]
    assert re.findall(r"^## (Holdfast\w+)$", RUNBOOK, re.MULTILINE) == names
    for rule in rules():
        anchor = f"{BASE}/how-to/respond-to-alerts.html#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == anchor
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["for"]


def test_documented_command_sets_the_base_of_all_runbooks(tmp_path: Path) -> None:
    (command,) = re.findall(r"^\$ (sed .+)$", RUNBOOK, re.MULTILINE)
    copy = tmp_path / "manifests" / "monitoring"
    shutil.copytree(FOLDER, copy)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    text = (copy / "rules.yaml").read_text()
    assert text.count("runbook_url: https://docs.example.org/holdfast/how-to/") == len(rules())
    assert BASE not in text


def test_dashboard_filters_by_cluster_and_namespace() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    assert {"cluster", "namespace"} <= {one["name"] for one in dashboard["templating"]["list"]}
    chosen = r'\{cluster=~"\$cluster", namespace=~"\$namespace"'
    for panel in panels():
        for target in panel["targets"]:
            series = re.findall(r"\bholdfast_\w+", target["expr"])
            assert len(re.findall(chosen, target["expr"])) == len(series)


def test_panels_do_not_overlap() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        assert panel["description"]
        taken |= cells
