"""`holdfast preview`, mostly with `--dry-run=server`."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from holdfast.webhook.cli import server_preview
from holdfast.webhook.errors import ApiStatusError
from tests.support.builders import Document, make_pod
from tests.support.fakes import raising
from tests.support.served import ServedApi
from tests.unit.cli.commands import written

WARNED = ['299 - "holdfast: unknown annotation \\"holdfast.dev/delai\\""', '299 - "second, too"']
SHOWN = ['warning: holdfast: unknown annotation "holdfast.dev/delai"', "warning: second, too"]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {"template": {"metadata": {}, "spec": {"containers": []}}},
}


def server_dry_run(cluster: ServedApi, folder: Path, *documents: Document, code: int = 0) -> Result:
    cluster.api.created = lambda: 1_798_131_600.0
    file = written(folder, "\n---\n".join(map(json.dumps, documents)))
    return cluster.run("preview", "--dry-run=server", "-f", file, code=code)


@pytest.mark.parametrize("document", [make_pod(), DEPLOYMENT], ids=["Pod", "Deployment"])
def test_api_server_warnings_are_shown(
    document: Document, cluster: ServedApi, tmp_path: Path
) -> None:
    cluster.warnings = WARNED
    stdout = server_dry_run(cluster, tmp_path, document).stdout
    assert [line.strip() for line in stdout.splitlines() if "warning:" in line] == SHOWN


def test_api_server_defaults_are_not_changes() -> None:
    manifest = {
        "metadata": {"annotations": {"delay": "1s", "app": "x"}},
        "spec": {"tolerations": [{"operator": "Exists", "key": "gpu"}]},
    }
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    stored = {
        "metadata": {"annotations": {"app": "x", "delay": "1s"}, "uid": "u"},
        "spec": {
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "gpu", "operator": "Exists"}, *tolerations],
        },
    }
    before, after = server_preview.decided(manifest), server_preview.decided(stored)
    assert json.dumps(before) == json.dumps(after)


def _pod(name: str, **annotations: str) -> str:
    keys = {f"holdfast.dev/{key}": value for key, value in annotations.items()}
    return json.dumps(make_pod(keys, name=name))


def test_warnings_fail_a_strict_preview(cluster: ServedApi, tmp_path: Path) -> None:
    file = written(tmp_path, _pod("a", delai="1h"))
    assert "did you mean holdfast.dev/delay?" in cluster.run("preview", "-f", file).stdout
    result = cluster.run("preview", "--strict", "-f", file, code=1)
    assert result.stderr == "1 object with warnings; the reasons are above"


def test_summary_counts_all_problems(cluster: ServedApi, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "invalid.yaml").write_text(_pod("a", delay="soon"))
    loop = [_job("b", after="c"), _job("c", after="b")]
    (tmp_path / "loop.yaml").write_text("\n---\n".join(loop))
    result = cluster.run("preview", "-f", str(tmp_path), code=1)
    assert "these pods never start, because they wait for each other: " in result.stderr
    assert result.stderr.endswith(
        "1 of 3 files cannot be read, 1 would be rejected; the reasons are above"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            None,
            "cannot be read (No such file or directory); name a readable file, or - for standard "
            "input",
            id="missing",
        ),
        pytest.param(
            "a: b: c",
            'invalid YAML: mapping values are not allowed here in "FILE", line 1, column 5; '
            "correct it there",
            id="broken",
        ),
    ],
)
def test_missing_or_invalid_file_is_an_error(
    text: str | None, problem: str, cluster: ServedApi, tmp_path: Path
) -> None:
    file = tmp_path / "web.yaml"
    if text is not None:
        file.write_text(text)
    stderr = cluster.run("preview", "-f", str(file), code=1).stderr
    assert stderr.replace(str(file), "FILE") == f"FILE: {problem}"


def _job(name: str, *, after: str) -> str:
    pod = {"metadata": {"annotations": {"holdfast.dev/after": f"job/{after}"}}, "spec": {}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
    return json.dumps({**job, "spec": {"template": pod}})


def test_kustomization_in_folder_is_noted(cluster: ServedApi, tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [pod.yaml]")
    (tmp_path / "pod.yaml").write_text(_pod("a"))
    stderr = cluster.run("preview", "-f", str(tmp_path)).stderr
    assert f"to preview what it builds, use -k {tmp_path}\n" in stderr


def test_field_unknown_to_the_api_server_is_a_rejection(cluster: ServedApi, tmp_path: Path) -> None:
    problem = "HTTP 500: failed to create typed patch object (default/web): .spec.x: not declared"
    cluster.api.before("PATCH", raising(ApiStatusError(problem, status=500)))
    result = server_dry_run(cluster, tmp_path, DEPLOYMENT, make_pod({}, name="next"), code=1)
    assert "Deployment default/web: rejected" in result.stdout
    assert "Pod default/next: " in result.stdout


NO_CHANGE = "  delay: no change\n"


def test_only_plugins_with_changes_are_shown(cluster: ServedApi, tmp_path: Path) -> None:
    placed_pod = json.dumps(make_pod({"type": "space", "delay": "0"}))
    file = written(tmp_path, f"{_pod('free')}\n---\n{placed_pod}")
    stdout = cluster.run("preview", "-f", file).stdout
    assert f"Pod default/free: unchanged\n  no plugin changes it\n{file}: Pod" in stdout
    assert NO_CHANGE not in stdout
    assert stdout.count("no plugin changes it") == 1
    assert "  placement: requires nodes with" in stdout
    assert NO_CHANGE in cluster.run("preview", "-v=1", "-f", file).stdout


JOBS = [
    {"template": {"spec": {"template": {"metadata": {"annotations": annotations}, "spec": {}}}}}
    for annotations in ({}, {"holdfast.dev/delay": "1h"})
]
JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {"replicatedJobs": JOBS},
}
PATHS = [f"spec.replicatedJobs[{index}].template.spec.template" for index in (0, 1)]


def test_each_template_is_sent_to_the_api_server(cluster: ServedApi, tmp_path: Path) -> None:
    stdout = server_dry_run(cluster, tmp_path, JOB_SET).stdout
    names = [line.partition(": ")[2] for line in stdout.splitlines() if "JobSet" in line]
    assert names == [f"JobSet default/train ({path}): unchanged" for path in PATHS]
    sent = [json.loads(body)["metadata"] for body in cluster.api.bodies[1:]]
    assert [metadata.get("annotations") for metadata in sent] == [{}, {"holdfast.dev/delay": "1h"}]


def test_object_with_several_templates_counts_once(cluster: ServedApi, tmp_path: Path) -> None:
    cluster.api.before("POST", *[raising(ApiStatusError("HTTP 403: no", status=403))] * 2)
    result = server_dry_run(cluster, tmp_path, JOB_SET, code=1)
    assert result.stdout.count(": rejected") == 2
    assert result.stderr == "1 would be rejected; the reasons are above"


@pytest.mark.parametrize("name", [{"name": "web"}, {"generateName": "web-"}], ids=["name", "none"])
@pytest.mark.parametrize(
    ("kind", "owner"), [("DaemonSet", "DaemonSet"), ("Deployment", None)], ids=str
)
def test_daemon_set_pod_keeps_its_owner(
    kind: str, owner: str | None, name: dict[str, str], cluster: ServedApi, tmp_path: Path
) -> None:
    """Without an owner it would be placed, unlike DaemonSet pods; an owner must have a name."""
    server_dry_run(cluster, tmp_path, {**DEPLOYMENT, "kind": kind, "metadata": name})
    owners = json.loads(cluster.api.bodies[-1])["metadata"].get("ownerReferences", ())
    assert [ref["kind"] for ref in owners] == ([owner] if owner else [])
    assert all(ref["controller"] and ref["apiVersion"] == "apps/v1" for ref in owners)
    assert all(ref["name"] == name.get("name", "preview") and ref["uid"] for ref in owners)
