"""Which tests run the commands on the pages: whole pages, or single commands elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from docs import transcript
from docs.transcript import Step

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    "docs/start.md",
    "docs/how-to/delay.md",
    "docs/how-to/delay-a-rollout.md",
    "docs/how-to/spread-pod-starts.md",
    "docs/how-to/start-at-most.md",
    "docs/how-to/start-after.md",
    "docs/how-to/approve.md",
    "docs/how-to/freeze.md",
    "docs/how-to/migrate.md",
    "docs/how-to/inspect-and-release.md",
)
"""Pages that `tests/e2e/test_pages.py` runs from end to end, but for what ELSEWHERE names."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Commands of a page that another file runs, and a text in that file that proves it."""

    command: str
    run_by: str
    evidence: str


_STICKY = "tests/e2e/sticky"
_HOLDS = "tests/e2e/guard/test_holds.py"
_NODE = "tests/node/installation.py"
_INSTALLED = "tests/node/test_installation.py"
_INSTALLED_HERE = "tests/e2e/installed.py"

ELSEWHERE: Mapping[str, Sequence[Elsewhere]] = MappingProxyType(
    {
        "README.md": (
            Elsewhere(r"helm install", "tests/node/test_release.py", '"install"'),
            Elsewhere(r"kubectl run held", "tests/node/test_release.py", '"run", "held"'),
            Elsewhere(r"make run\b", "tests/e2e/test_demo.py", "make_run"),
            Elsewhere(r"make up\b", "tests/e2e/test_demo.py", "make_up"),
            Elsewhere(r"make test\b", ".ci/run", "make test"),
        ),
        "CONTRIBUTING.md": (
            Elsewhere(r"make check\b", ".ci/run", "make check"),
            Elsewhere(r"make test\b", ".ci/run", "make test"),
            Elsewhere(r"\.venv/bin/python -m pytest tests/", "scripts/test", "pytest"),
        ),
        "docs/start.md": (Elsewhere(r"make up$", "tests/e2e/test_demo.py", "make_up"),),
        "docs/how-to/inspect-and-release.md": (
            Elsewhere(r"holdfast doctor", "tests/e2e/cli/test_doctor.py", '"doctor"'),
            Elsewhere(
                r"kubectl .* port-forward", "tests/node/test_installation.py", "port-forward"
            ),
        ),
        "docs/how-to/install.md": (
            Elsewhere(r"podman (build|push)", "controlplane/image.py", '"bud"'),
            Elsewhere(r"helm install", "tests/node/test_release.py", '"install"'),
            Elsewhere(r"helm upgrade", "tests/node/test_release.py", '"upgrade"'),
            Elsewhere(r"helm rollback", "tests/node/test_release.py", '"rollback"'),
            Elsewhere(r"helm uninstall", "tests/node/test_release.py", '"uninstall"'),
            Elsewhere(r"holdfast policies", "tests/unit/policies/test_pods.py", '"policies"'),
            Elsewhere(
                r"pip install --no-deps --require-hashes",
                "Containerfile",
                "--no-deps --require-hashes",
            ),
            Elsewhere(
                r"pip install --no-deps \.", "Containerfile", "--no-deps --no-build-isolation"
            ),
            Elsewhere(r"kubectl apply -k \.", _NODE, '"apply", "-k"'),
            Elsewhere(r"kubectl -n \S+ rollout status", _NODE, '"rollout", "status"'),
            Elsewhere(r"kubectl wait ", _NODE, '"wait"'),
            Elsewhere(r"holdfast uninstall", _INSTALLED, '"uninstall"'),
            Elsewhere(r"kubectl delete", _INSTALLED, '"kubectl delete -k ."'),
            Elsewhere(r"kubectl (get|patch)", "tests/e2e/test_pages.py", "install.md"),
        ),
        "docs/how-to/respond-to-alerts.md": (
            Elsewhere(
                r"sed ",
                "tests/tooling/test_monitoring.py",
                "test_documented_command_sets_the_base_of_all_runbooks",
            ),
        ),
        "docs/how-to/certificates.md": (
            Elsewhere(r"holdfast controller .*=self", _INSTALLED_HERE, '"--leader-elect"'),
            Elsewhere(r"holdfast serve .*--await", _INSTALLED_HERE, '"--await-certificate"'),
            Elsewhere(
                r"kubectl .* delete secret",
                "tests/e2e/test_certificates.py",
                '"delete", "secret", CA, LEAF',
            ),
            Elsewhere(
                r"holdfast controller .*=cert-m",
                "tests/e2e/test_publisher.py",
                'certificates="cert-manager"',
            ),
            Elsewhere(r"kubectl .* create configmap", _INSTALLED, '"configmap"'),
        ),
        "docs/how-to/start-after.md": (
            Elsewhere(
                r"holdfast rbac", "tests/unit/plugins/after/test_after.py", "roles.after_role"
            ),
        ),
        "docs/how-to/guard.md": (
            Elsewhere(r"kubectl apply -k manifests/rbac", "tests/e2e/accounts.py", '"rbac"'),
            Elsewhere(r"kubectl apply -k manifests/guard", _INSTALLED_HERE, '"guard"'),
            Elsewhere(r"holdfast policies", "tests/unit/policies/test_pods.py", '"policies"'),
            Elsewhere(r"kubectl create rolebinding", _HOLDS, '"rolebinding"'),
            Elsewhere(r"kubectl auth can-i", "tests/node/installation.py", "can-i"),
            Elsewhere(
                r"kubectl (annotate|patch|get) pod",
                _HOLDS,
                "test_developer_cannot_release_or_change_a_hold",
            ),
        ),
        "docs/how-to/approve.md": (
            Elsewhere(
                r"kubectl create rolebinding",
                "tests/e2e/guard/test_approval.py",
                "holdfast-approver",
            ),
        ),
        "docs/how-to/freeze.md": (
            Elsewhere(r"holdfast (freeze|thaw) --all", "tests/e2e/test_freeze.py", '"--all"'),
        ),
        "docs/how-to/sticky-vms.md": (
            Elsewhere(
                r"kubectl (apply|delete|get (?!.*\| sh$)|taint|wait) ?",
                f"{_STICKY}/test_records.py",
                "20_times_of_20",
            ),
            Elsewhere(
                r"kubectl annotate vm db .*node=node",
                f"{_STICKY}/test_records.py",
                "test_user_moves_a_vm_and_clears_its_record",
            ),
            Elsewhere(
                r"kubectl annotate vm db .*sticky=false",
                f"{_STICKY}/test_before_holdfast.py",
                "sticky=true",
            ),
            Elsewhere(
                r"kubectl (un)?cordon",
                f"{_STICKY}/test_unavailable_nodes.py",
                "test_vm_waits_for_its_node",
            ),
            Elsewhere(r"kubectl get .*\| sh$", "tests/e2e/test_pages.py", "sticky-vms.md"),
            Elsewhere(r"holdfast sticky list", f"{_STICKY}/test_migrations.py", "(differs)"),
        ),
        "docs/reference/cli.md": (
            Elsewhere(
                r"source <|holdfast completion",
                "tests/unit/cli/test_completion.py",
                "test_documented_line_enables_bash_completion",
            ),
        ),
        "docs/explanation/performance.md": (
            Elsewhere(r"make bench", "tests/bench/test_rows.py", "test_row_runs"),
        ),
    }
)


def steps(page: str) -> Iterator[Step]:
    """Return every command that a page shows, in a terminal or in a script."""
    text = (ROOT / page).read_text(encoding="utf-8")
    yield from transcript.steps(text)
    for kind, script in transcript.blocks(text):
        if kind in {"sh", "bash"}:
            yield Step(script.strip(), ())


def elsewhere(page: str, step: Step) -> list[Elsewhere]:
    """Return what else runs a command."""
    return [row for row in ELSEWHERE.get(page, ()) if re.match(row.command, step.command)]
