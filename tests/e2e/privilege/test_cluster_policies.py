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
    marked = ns.get("pod", "marked")["spec"]

    assert ROLE in json.dumps(marked["affinity"])
    assert TAINT not in json.dumps(marked["tolerations"])


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
    mounted = secured.installed.folder / "mount-0" / "..data"
    pair = ["--cert", str(mounted / "tls.crt"), "--key", str(mounted / "tls.key")]
    more = {"serve": [*pair, "--port", "0"], "controller": ["--health-port", "0"]}
    given = ["--kubeconfig", str(secured.installed.kubeconfig), "--config", str(rules)]
    command = [sys.executable, "-m", "holdfast.webhook", process, *given, *more[process]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "rules[1].tolerations: cannot be added at release" in done.stderr


@pytest.mark.usefixtures("tainted")
def test_policy_on_create_alone_misses_tolerations_added_by_update(secured: Secured) -> None:
    """With or without Holdfast, users who may update pods may add tolerations."""
    half = secured.banned("half-closed", TOLERATING, CREATION)
    whole = secured.banned("closed", TOLERATING, ALWAYS)
    add = [{"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION}]
    for ns in (half, whole):
        chosen_by_hand = pod("by-hand", None, nodeSelector={ROLE: "edge"})
        secured.jane(ns).create(chosen_by_hand, dry_run=False)
    secured.jane(half).patch("by-hand", add, dry_run=False)

    assert node_of(half, "by-hand") == THERE
    assert TOLERATING.message in refusal(secured.jane(whole).patch, "by-hand", add)


def test_policy_on_node_affinity_must_match_updates(secured: Secured) -> None:
    """A requirement that a rule adds at release counts as a change of the pod."""
    half = secured.banned("half-free", REQUIRING, CREATION)
    whole = secured.banned("unfree", REQUIRING, ALWAYS)
    marked = pod("marked", {"type": "late", "delay": "1"})
    now = pod("now", {"type": "space"})
    for ns in (half, whole):
        assert REQUIRING.message in refusal(secured.jane(ns).create, now)
        secured.jane(ns).create(marked, dry_run=False)
    assert node_of(half, "marked") == THERE
    assert node_of(whole, "marked")

    assert ROLE in json.dumps(half.get("pod", "marked")["spec"])
    assert ROLE not in json.dumps(whole.get("pod", "marked")["spec"])
    expected = f"released without what was to be added: .*{REQUIRING.message}"
    whole.eventually(lambda: re.search(expected, json.dumps(whole.all("events.events.k8s.io"))))
