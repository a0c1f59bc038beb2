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
    labels_by_series: dict[str, set[str]] = {}
    for registry in generate.REGISTRIES.values():
        for name, kind, labels, _ in generate.described_metrics(registry()):
            label_names = set(labels) | ({"version"} if name == "holdfast_build_info" else set())
            label_names |= {"digest"} if name == "holdfast_configuration_info" else set()
            if kind == "histogram":
                labels_by_series |= {f"{name}_{suffix}": label_names for suffix in ("sum", "count")}
                labels_by_series[f"{name}_bucket"] = label_names | {"le"}
            else:
                labels_by_series[name] = label_names
    return labels_by_series


SERIES = series()
BASE = "https://holdfast.example.com"
TARGET_LABELS = {"cluster", "namespace"}
"""Labels that Prometheus adds to every series."""


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_are_valid_and_use_existing_metrics_and_labels(expression: str) -> None:
    assert promql_parser.parse(expression).prettify()
    metric_names = re.findall(r"\bholdfast_\w+", expression)
    assert metric_names
    assert [name for name in metric_names if name not in SERIES] == []
    known_labels = set().union(*(SERIES[name] for name in metric_names))
    labels = re.findall(r"(\w+)\s*=~?\s*\"", expression)
    labels += re.split(r",\s*", ",".join(re.findall(r"\bby \(([^)]*)\)", expression)))
    assert {label for label in labels if label} <= known_labels | TARGET_LABELS


def test_documented_statuses_exist() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    permits = {permit.__name__ for permit in get_args(Permit)}
    statuses = set(re.findall(r'status="(\w+)"', page + " ".join(map(str, rules()))))
    assert {"Reject", "Error"} <= statuses <= {*Code} | permits


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
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert {"cluster", "namespace"} <= variables
    filter_pattern = r'\{cluster=~"\$cluster", namespace=~"\$namespace"'
    for panel in panels():
        for target in panel["targets"]:
            series = re.findall(r"\bholdfast_\w+", target["expr"])
            assert len(re.findall(filter_pattern, target["expr"])) == len(series)


def test_panels_have_descriptions_and_unique_ids() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    assert all(panel["description"] for panel in panels())
