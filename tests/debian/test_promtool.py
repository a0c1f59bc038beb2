"""The shipped alerts, checked with promtool: their syntax, and when they fire."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "rules.yaml"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Return the alerts as the Prometheus operator passes them to Prometheus."""
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(RULES.read_text())["spec"]))
    return path


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


def test_promtool_accepts_the_rules(rules: Path) -> None:
    process = promtool("check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert process.returncode == 0, process.stdout + process.stderr
    count = len(yaml.safe_load(rules.read_text())["groups"][0]["rules"])
    assert f"SUCCESS: {count} rules found" in process.stdout


Series = Mapping[str, str]
"""The values of each series, one per minute, in promtool's notation."""

LEAF, CA = (
    f"holdfast_{certificate}_expiry_timestamp_seconds" for certificate in ("certificate", "ca")
)
UNCERTAIN, REGISTERED = "holdfast_clock_uncertainty_seconds", "holdfast_webhooks_registered"
KEPT_BACK = "holdfast_vm_pods_kept_back"


def reviews(outcome: str, values: str) -> Series:
    return {f'holdfast_reviews_total{{path="mutate",outcome="{outcome}"}}': values}


def decisions(status: str, values: str) -> Series:
    """Return a count of decisions, which the controller starts at 0 before the first failure."""
    labels = f'extension_point="permit",plugin="after",status="{status}"'
    return {f"holdfast_plugin_execution_duration_seconds_count{{{labels}}}": values}


def late(in_time: int, total: int) -> Series:
    """Return releases per minute: `in_time` are at most 5 s late, and all are at most 15 s late."""
    counts = {"5.0": in_time, "15.0": total, "+Inf": total}
    return {
        f'holdfast_release_lateness_seconds_bucket{{le="{le}"}}': f"0+{count}x60"
        for le, count in counts.items()
    }


def slow(point: str) -> Series:
    """Return calls at an extension point that all take between half a second and a second."""
    metric = "holdfast_framework_extension_point_duration_seconds_bucket"
    counts = {"0.5": 0, "1.0": 6, "+Inf": 6}
    return {
        f'{metric}{{le="{le}",extension_point="{point}"}}': f"0+{count}x60"
        for le, count in counts.items()
    }


def expires(metric: str, days: int) -> Series:
    """Return a certificate that expires in `days` and five minutes; a pod without one reports 0."""
    values = f"{days * 86_400 + 300}x60"
    return {f'{metric}{{pod="a"}}': values, f'{metric}{{pod="b"}}': "0x60"}


def by_leader(metric: str, leader: str, standby: str) -> Series:
    """Return a metric of two controllers, of which the first one is the leader."""
    return {
        f'{metric}{{pod="a"}}': leader,
        f'{metric}{{pod="b"}}': standby,
        'holdfast_leader{pod="a"}': "1x60",
        'holdfast_leader{pod="b"}': "0x60",
    }


FIRES = [
    pytest.param("HoldfastPodsOverdue", {"holdfast_overdue_pods": "0x2 3x20"}, 3, "3", id="pods"),
    pytest.param("HoldfastNoLeader", {"up": "1x20"}, 0, "", id="no controller"),
    pytest.param(
        "HoldfastNoLeader",
        {'holdfast_leader{cluster="a"}': "1x60", 'holdfast_leader{cluster="b"}': "1x2 0x60"},
        3,
        "",
        id="no leader in one cluster of two",
    ),
    pytest.param(
        "HoldfastNoLeader",
        {'holdfast_leader{cluster="a"}': "1x60", 'holdfast_leader{cluster="b"}': "1x2 stale"},
        3,
        "",
        id="no controller in one cluster of two",
    ),
    pytest.param("HoldfastNoServer", {"up": "1x20"}, 0, "", id="no server"),
    pytest.param(
        "HoldfastNoServer",
        {f'{LEAF}{{cluster="a"}}': "9x60", f'{LEAF}{{cluster="b"}}': "9x2 stale"},
        3,
        "",
        id="no server in one cluster of two",
    ),
    pytest.param("HoldfastPermitFails", decisions("Error", "0+1x30"), 4, "", id="a plugin fails"),
    pytest.param(
        "HoldfastPermitFails", decisions("Error", "0x5 4x60"), 6, "", id="four failures at once"
    ),
    pytest.param("HoldfastFrozen", {"holdfast_freezes": "NaN 0x2 2x1500"}, 4, "2", id="freezes"),
    pytest.param("HoldfastReleasesLate", late(0, 6), 1, "14.9s", id="all are late"),
    pytest.param("HoldfastReleasesLate", late(40, 41), 1, "10.9s", id="one of 41 is late"),
    pytest.param(
        "HoldfastClockUnknown", by_leader(UNCERTAIN, "0x2 2x20", "0x40"), 3, "", id="clock"
    ),
    pytest.param("HoldfastReviewsFail", reviews("failed", "0+1x30"), 4, "", id="failed"),
    pytest.param("HoldfastReviewsFail", reviews("bad", "0+1x30"), 4, "", id="no reviews"),
    pytest.param("HoldfastReviewsFail", reviews("failed", "0x5 40x60"), 6, "", id="a burst"),
    pytest.param("HoldfastReviewsSlow", slow("mutate"), 1, "995ms", id="slow"),
    pytest.param(
        "HoldfastRefusalsSpike", reviews("refused", "0x60 0+30x40"), 62, "180", id="refusals"
    ),
    pytest.param("HoldfastCertificateExpires", expires(LEAF, 7), 6, "6d 23h 49m 0s", id="leaf"),
    pytest.param("HoldfastAuthorityExpires", expires(CA, 30), 6, "29d 23h 49m 0s", id="CA"),
    pytest.param(
        "HoldfastWebhooksUnregistered",
        by_leader(REGISTERED, "1x2 0x20", "1x40"),
        3,
        "",
        id="webhooks",
    ),
    pytest.param(
        "HoldfastWebhooksUnregistered",
        {
            f'{metric}{{cluster="{cluster}"}}': value
            for cluster, registered in (("a", "1x60"), ("b", "1x2 0x20"))
            for metric, value in ((REGISTERED, registered), ("holdfast_leader", "1x60"))
        },
        3,
        "",
        id="webhooks of one cluster of two",
    ),
    pytest.param("HoldfastVmsKeptBack", {KEPT_BACK: "0x2 3x20"}, 3, "3", id="VMs"),
]
"""An alert, its series, the minute from which its expression is true, and the value shown."""

HOUR = range(60)
QUIET = [
    pytest.param(
        "HoldfastPodsOverdue", {"holdfast_overdue_pods": "0x2 3x1 0x2 3x1 0x60"}, HOUR, id="briefly"
    ),
    pytest.param(
        "HoldfastNoLeader",
        {'holdfast_leader{pod="a"}': "1x2 0x60", 'holdfast_leader{pod="b"}': "0x3 1x60"},
        HOUR,
        id="leader changes",
    ),
    pytest.param(
        "HoldfastNoServer",
        {f'{LEAF}{{pod="a"}}': "9x60", f'{LEAF}{{pod="b"}}': "9x2 stale"},
        HOUR,
        id="one of two servers left",
    ),
    pytest.param("HoldfastPermitFails", decisions("Wait", "0+9x60"), HOUR, id="pods wait"),
    pytest.param("HoldfastPermitFails", decisions("Error", "0x5 1x60"), HOUR, id="fails once"),
    pytest.param(
        "HoldfastFrozen",
        {"holdfast_freezes": "1x1400 0x2 1x1400"},
        range(1390, 2800, 10),
        id="a new freeze each day",
    ),
    pytest.param("HoldfastReleasesLate", late(199, 200), HOUR, id="one of 200 is late"),
    pytest.param("HoldfastReleasesLate", late(0, 0), HOUR, id="no release"),
    pytest.param(
        "HoldfastClockUnknown", by_leader(UNCERTAIN, "0.5x60", "2x60"), HOUR, id="standby only"
    ),
    pytest.param("HoldfastReviewsFail", reviews("refused", "0+9x60"), HOUR, id="refusals"),
    pytest.param("HoldfastReviewsFail", reviews("failed", "0x5 1x60"), HOUR, id="one failure"),
    pytest.param("HoldfastReviewsSlow", slow("release"), HOUR, id="slow at release"),
    pytest.param("HoldfastRefusalsSpike", reviews("refused", "0+1x60"), HOUR, id="a few refusals"),
    pytest.param(
        "HoldfastRefusalsSpike",
        reviews("refused", "0+30x1500"),
        range(1450, 1500),
        id="as many refusals as before",
    ),
    pytest.param("HoldfastCertificateExpires", expires(LEAF, 8), HOUR, id="leaf"),
    pytest.param("HoldfastAuthorityExpires", expires(CA, 31), HOUR, id="CA"),
    pytest.param(
        "HoldfastWebhooksUnregistered",
        by_leader(REGISTERED, "1x60", "0x60"),
        HOUR,
        id="standby reports 0",
    ),
    pytest.param(
        "HoldfastWebhooksUnregistered",
        by_leader(REGISTERED, " ".join(["NaN"] * 60), " ".join(["NaN"] * 60)),
        HOUR,
        id="registered without Holdfast",
    ),
    pytest.param(
        "HoldfastVmsKeptBack", {KEPT_BACK: "0x2 3x4 0x2 3x4 0x60"}, HOUR, id="VMs briefly"
    ),
]
"""An alert, its series, and the minutes in which it must not fire."""


def alerts(rules: Path) -> dict[str, Any]:
    return {rule["alert"]: rule for rule in yaml.safe_load(rules.read_text())["groups"][0]["rules"]}


def check(
    rules: Path, alert: str, series: Series, expected: Iterable[tuple[int, list[Any]]]
) -> None:
    """Check with promtool which alerts the series cause at these minutes."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected_alerts}
            for minute, expected_alerts in expected
        ],
    }
    tests = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
    path = rules.with_name("tests.yaml")
    path.write_text(yaml.safe_dump(tests))
    process = promtool("test", "rules", str(path))
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_alert_has_positive_and_negative_cases(rules: Path) -> None:
    assert {row.values[0] for row in FIRES} == set(alerts(rules))
    assert {row.values[0] for row in QUIET} == set(alerts(rules))


@pytest.mark.parametrize(("alert", "series", "minute", "value"), FIRES)
def test_alert_fires_on_time(
    rules: Path, alert: str, series: Series, minute: int, value: str
) -> None:
    rule = alerts(rules)[alert]
    delay = int(rule["for"][:-1]) * {"m": 1, "d": 24 * 60}[rule["for"][-1]]
    labels = dict(re.findall(r'(extension_point|cluster|plugin)="(\w+)"', " ".join(series)))

    def expand(text: str) -> str:
        text = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels[match[1]], text)
        return re.sub(r"{{ \$value( \| \w+)? }}", value, text)

    expected_alert = {
        "exp_labels": {**rule["labels"], **labels},
        "exp_annotations": {key: expand(text) for key, text in rule["annotations"].items()},
    }
    check(rules, alert, series, [(minute + delay - 1, []), (minute + delay, [expected_alert])])


@pytest.mark.parametrize(("alert", "series", "minutes"), QUIET)
def test_alert_does_not_fire_when_healthy(
    rules: Path, alert: str, series: Series, minutes: range
) -> None:
    check(rules, alert, series, [(minute, []) for minute in minutes])
