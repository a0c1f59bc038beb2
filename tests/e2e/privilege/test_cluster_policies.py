"""Tainted nodes, and policies of the cluster's admin."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.fake_kubevirt import create_as_kubevirt
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import gates, pod
from tests.e2e.privilege.marks import BEARING, MARKS
from tests.e2e.secured import (
    ALWAYS,
    CREATION,
    REQUIRING,
    ROLE,
    RULES,
    TAINT,
    THERE,
    TOLERATING,
    TOLERATION,
    Secured,
    node_of,
    refused_by_scheduler,
    sticky_vm,
)

pytestmark = pytest.mark.xdist_group("privilege")


@pytest.mark.usefixtures("tainted")
@pytest.mark.parametrize("mark", BEARING)
def test_policy_on_create_sees_tolerations_added_by_rules(secured: Secured, mark: str) -> None:
    """Without the policy, such a rule does open the node to a pod with the annotation."""
    closed = secured.banned(f"closed-{mark}", TOLERATING, CREATION)
    free = secured.ns(f"open-{mark}")
    marked = pod("marked", {"type": mark, **MARKS[mark]})
    message = refusal(secured.jane(closed).create, marked, dry_run=False)
    secured.jane(free).create(marked, dry_run=False)

    assert TOLERATING.message in message
    assert closed.all("pods") == []
    assert node_of(free, "marked") == THERE


@pytest.mark.usefixtures("tainted")
@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark not in BEARING])
def test_rules_without_tolerations_do_not_open_tainted_nodes(secured: Secured, mark: str) -> None:
    ns = secured.banned(f"shut-{mark}", TOLERATING, ALWAYS)
    secured.jane(ns).create(pod("marked", {"type": mark, **MARKS[mark]}), dry_run=False)
    ns.eventually(lambda: not gates(ns.get("pod", "marked")))
    ns.eventually(lambda: refused_by_scheduler(ns, "marked"))
    spec = ns.get("pod", "marked")["spec"]

    assert ROLE in json.dumps(spec["affinity"])
    assert TAINT not in json.dumps(spec["tolerations"])


@pytest.mark.usefixtures("tainted")
def test_sticky_record_does_not_tolerate_taints(secured: Secured) -> None:
    ns = secured.ns("stuck-outside")
    stored = create_as_kubevirt(ns, sticky_vm(ns, THERE))

    assert THERE in json.dumps(stored["spec"]["affinity"])
    assert TAINT not in json.dumps(stored["spec"]["tolerations"])
    ns.eventually(lambda: refused_by_scheduler(ns, "virt-launcher-vm"))


@pytest.mark.parametrize("process", ["serve", "controller"])
def test_rules_cannot_add_tolerations_at_release(
    secured: Secured, tmp_path: Path, process: str
) -> None:
    """Policies on CREATE would not see these, so neither process starts."""
    rules = tmp_path / "holdfast.yaml"
    tolerations = "tolerations: [{key: "
    rules.write_text(RULES.replace(tolerations, f"resolveAtRelease: true, {tolerations}"))
    folder = secured.installed.folder / "mount-0" / "..data"
    pair = ["--cert", str(folder / "tls.crt"), "--key", str(folder / "tls.key")]
    options = {"serve": [*pair, "--port", "0"], "controller": ["--health-port", "0"]}
    common = ["--kubeconfig", str(secured.installed.kubeconfig), "--config", str(rules)]
    command = [sys.executable, "-m", "holdfast.webhook", process, *common, *options[process]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 1
    assert "rules[1].tolerations: cannot be added at release" in result.stderr


@pytest.mark.usefixtures("tainted")
def test_policy_on_create_alone_misses_tolerations_added_by_update(secured: Secured) -> None:
    """With or without Holdfast, users who may update pods may add tolerations."""
    create_ns = secured.banned("half-closed", TOLERATING, CREATION)
    update_ns = secured.banned("closed", TOLERATING, ALWAYS)
    operations = [{"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION}]
    for ns in (create_ns, update_ns):
        manifest = pod("by-hand", None, nodeSelector={ROLE: "edge"})
        secured.jane(ns).create(manifest, dry_run=False)
    secured.jane(create_ns).patch("by-hand", operations, dry_run=False)

    assert node_of(create_ns, "by-hand") == THERE
    assert TOLERATING.message in refusal(secured.jane(update_ns).patch, "by-hand", operations)


def test_policy_on_node_affinity_must_match_updates(secured: Secured) -> None:
    """A requirement that a rule adds at release counts as a change of the pod."""
    create_ns = secured.banned("half-free", REQUIRING, CREATION)
    update_ns = secured.banned("unfree", REQUIRING, ALWAYS)
    marked = pod("marked", {"type": "late", "delay": "1"})
    now = pod("now", {"type": "space"})
    for ns in (create_ns, update_ns):
        assert REQUIRING.message in refusal(secured.jane(ns).create, now)
        secured.jane(ns).create(marked, dry_run=False)
    assert node_of(create_ns, "marked") == THERE
    assert node_of(update_ns, "marked")

    assert ROLE in json.dumps(create_ns.get("pod", "marked")["spec"])
    assert ROLE not in json.dumps(update_ns.get("pod", "marked")["spec"])
    expected = f"released without what was to be added: .*{REQUIRING.message}"
    update_ns.eventually(
        lambda: re.search(expected, json.dumps(update_ns.all("events.events.k8s.io")))
    )
