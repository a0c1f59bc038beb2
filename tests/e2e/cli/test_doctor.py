"""`holdfast doctor`, `holdfast version` and `holdfast uninstall`."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.e2e import short_intervals
from tests.e2e.cli.commands import GATE, Cli, user
from tests.e2e.namespace import Namespace, pod


def levels(output: str) -> dict[str, str]:
    pairs = re.findall(r"^(OK|WARNING|PROBLEM|UNKNOWN) +([\w ]+):", output, re.MULTILINE)
    return {check: level for level, check in pairs}


def test_doctor_on_a_cluster_with_holdfast(cli: Cli) -> None:
    checks = levels(cli.run("doctor").stdout)
    healthy = ("API server", "clock", "webhooks", "caBundle", "server", "certificate")
    assert {check: checks[check] for check in healthy} == dict.fromkeys(healthy, "OK")


@pytest.mark.xdist_group("cli")
def test_doctor_on_an_empty_cluster(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    result = cli.run("doctor")
    checks = levels(result.stdout)
    assert result.returncode == 1
    assert (checks["webhooks"], checks["leader"]) == ("PROBLEM", "WARNING")
    assert checks["held pods"] == "OK"
    assert "no mutating and no validating webhook is registered" in result.stdout
    assert "nothing is installed in namespace holdfast-system" in result.stdout
    gates = [{"name": GATE}]
    ns.apply(pod("stuck", {"delay": "1"}, schedulingGates=gates))
    overdue = ns.eventually(
        lambda: re.search("1 of 1 is overdue: .*stuck", cli.run("doctor").stdout)
    )
    assert overdue is not None
    assert levels(cli.run("doctor").stdout)["leader"] == "PROBLEM"
    assert "is still held" in cli.output("explain", "stuck")
    assert cli.output("list").splitlines()[1].split()[1] == "overdue"
    ns.kubectl("delete", "pod", "stuck")


@pytest.mark.xdist_group("cli")
def test_doctor_suggests_how_to_free_a_stuck_vm_pod(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    manifest = pod("kept")
    manifest["metadata"] |= {
        "labels": {"kubevirt.io": "virt-launcher"},
        "finalizers": ["holdfast.dev/sticky", "example.com/other"],
    }
    ns.apply(manifest)
    ns.kubectl("delete", "pod", "kept", "--wait=false", "--grace-period=0")
    pattern = re.compile("run: (kubectl .*)")
    commands = ns.eventually(
        lambda: pattern.findall(cli.run("doctor", module=short_intervals.__name__).stdout)
    )
    ns.kubectl(*shlex.split(commands[0])[1:])
    assert ns.get("pod", "kept")["metadata"]["finalizers"] == ["example.com/other"]
    ns.kubectl("patch", "pod", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_doctor_for_a_user_without_rights(ns: Namespace, tmp_path: Path) -> None:
    result = user(ns, "patient", tmp_path).run("doctor")
    checks = levels(result.stdout)
    assert checks["API server"] == "OK"
    assert checks["webhooks"] == checks["leader"] == checks["held pods"] == "UNKNOWN"
    assert list(checks)[-1] == "summary"
    assert "checked, no problem: API server, clock\n" in result.stdout
    assert result.returncode == 0


def test_version(cli: Cli) -> None:
    assert json.loads(cli.run("version", "-o", "json").stdout)["kubernetes"].startswith("v1.")
    assert cli.run("version", "--client").stdout.startswith("holdfast ")


@pytest.mark.xdist_group("cli")
def test_uninstall_reports_a_running_dev(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    arguments = ("uninstall", "--release", "now", "--yes")
    assert cli.run(*arguments).stdout == "nothing was installed in holdfast-system\n"
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    ns.apply({**kind, "metadata": {"name": "holdfast-dev"}})
    lines = cli.run(*arguments).stdout.splitlines()
    assert lines[0] == "nothing was installed in holdfast-system"
    assert "holdfast dev still holds pods in this cluster; stop it with Ctrl-C" in lines[1]
    ns.kubectl("delete", "mutatingwebhookconfiguration", "holdfast-dev")
