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
    found = re.findall(r"^(OK|WARNING|PROBLEM|UNKNOWN) +([\w ]+):", output, re.MULTILINE)
    return {about: level for level, about in found}


def test_doctor_on_a_cluster_with_holdfast(cli: Cli) -> None:
    found = levels(cli.run("doctor").stdout)
    healthy = ("API server", "clock", "webhooks", "caBundle", "server", "certificate")
    assert {about: found[about] for about in healthy} == dict.fromkeys(healthy, "OK")


@pytest.mark.xdist_group("cli")
def test_doctor_on_an_empty_cluster(bare: tuple[Namespace, Cli]) -> None:
    ns, cli = bare
    done = cli.run("doctor")
    found = levels(done.stdout)
    assert done.returncode == 1
    assert (found["webhooks"], found["leader"]) == ("PROBLEM", "WARNING")
    assert found["held pods"] == "OK"
    assert "no mutating and no validating webhook is registered" in done.stdout
    assert "nothing is installed in namespace holdfast-system" in done.stdout
    for asked in (("list",), ("show", "db")):
        assert "this cluster has no KubeVirt" in cli.error("sticky", *asked)
    gated = [{"name": GATE}]
    ns.apply(pod("stuck", {"delay": "1"}, schedulingGates=gated))
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
    kept = pod("kept")
    kept["metadata"] |= {
        "labels": {"kubevirt.io": "virt-launcher"},
        "finalizers": ["holdfast.dev/sticky", "example.com/other"],
    }
    ns.apply(kept)
    ns.kubectl("delete", "pod", "kept", "--wait=false", "--grace-period=0")
    advice = re.compile("run: (kubectl .*)")
    found = ns.eventually(
        lambda: advice.findall(cli.run("doctor", module=short_intervals.__name__).stdout)
    )
    ns.kubectl(*shlex.split(found[0])[1:])
    assert ns.get("pod", "kept")["metadata"]["finalizers"] == ["example.com/other"]
    ns.kubectl("patch", "pod", "kept", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_doctor_for_a_user_without_rights(ns: Namespace, tmp_path: Path) -> None:
    done = user(ns, "patient", tmp_path).run("doctor")
    found = levels(done.stdout)
    assert found["API server"] == "OK"
    assert found["webhooks"] == found["leader"] == found["held pods"] == "UNKNOWN"
    assert list(found)[-1] == "summary"
    assert "checked, no problem: API server, clock\n" in done.stdout
    assert done.returncode == 0


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
