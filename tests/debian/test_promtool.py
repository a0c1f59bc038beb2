"""The shipped alerts, as Prometheus' own promtool reads them, and when they fire."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "rules.yaml"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The alerts as Prometheus gets them from its operator."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_promtool_finds_nothing_wrong(rules: Path) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(yaml.safe_load(rules.read_text())["groups"][0]["rules"])
    assert f"SUCCESS: {count} rules found" in done.stdout


def test_promtool_refuses_what_is_wrong(rules: Path) -> None:
    rules.write_text(rules.read_text().replace("expr: ", "expr: sum(", 1))
    assert promtool("check", "rules", str(rules)).returncode != 0


FIRES = [
    pytest.param("HoldfastPodsOverdue", {"holdfast_overdue_pods": "0x2 3x20"}, 3, id="overdue"),
    pytest.param("HoldfastNoLeader", {"holdfast_leader": "1x2 0x20"}, 3, id="no leader"),
    pytest.param("HoldfastNoLeader", {"up": "1x20"}, 0, id="no controller"),
]


@pytest.mark.parametrize(("alert", "series", "minute"), FIRES)
def test_an_alert_fires_in_its_time_and_not_before(
    rules: Path, tmp_path: Path, alert: str, series: dict[str, str], minute: int
) -> None:
    found = yaml.safe_load(rules.read_text())["groups"][0]["rules"]
    (rule,) = (one for one in found if one["alert"] == alert)
    waits = int(rule["for"].removesuffix("m"))
    shown: dict[str, Any] = {"exp_labels": rule["labels"]}
    shown["exp_annotations"] = {
        key: text.replace("{{ $value }}", "3") for key, text in rule["annotations"].items()
    }
    expected: Sequence[tuple[int, list[Any]]] = (
        (minute + waits - 1, []),
        (minute + waits, [shown]),
    )
    tests = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in series.items()
                ],
                "alert_rule_test": [
                    {"eval_time": f"{at}m", "alertname": alert, "exp_alerts": alerts}
                    for at, alerts in expected
                ],
            }
        ],
    }
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(tests))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
