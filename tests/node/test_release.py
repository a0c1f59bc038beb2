"""A release on a real node: its install.yaml, and its chart in another namespace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane import build, node_plan
from controlplane.launcher import ControlPlane
from controlplane.modules import HELM
from controlplane.node import Node
from controlplane.progress import PlainReport
from release.__main__ import REPOSITORY, Files
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, created, gates, pod
from tests.e2e.steady_load import creating
from tests.node.installation import (
    TAGS,
    all_objects,
    await_rollouts,
    check_released_on_time,
    uninstall,
)

ELSEWHERE = "platform"
_WAIT = ("--wait", "--timeout=180s")


class Release:
    """The chart in a cluster."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder

    def helm(self, command: str, *arguments: str) -> None:
        """Run helm on the release, without the user's settings."""
        binary = build.ensure(modules=HELM) / "helm"
        options = ("--namespace", ELSEWHERE, "--kubeconfig", str(self._plane.kubeconfig))
        homes = {f"HELM_{name}_HOME": str(self._folder) for name in ("CACHE", "CONFIG", "DATA")}
        process = subprocess.run(
            [str(binary), command, "holdfast", *arguments, *options],
            env={**os.environ, **homes},
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert process.returncode == 0, process.stderr

    def image(self) -> str:
        """Return the image of the admission servers."""
        path = "jsonpath={.spec.template.spec.containers[0].image}"
        options = ("--namespace", ELSEWHERE, "deployment/holdfast-webhook")
        return self._plane.kubectl("get", *options, "-o", path)


@pytest.fixture(scope="module")
def dist(plane: ControlPlane, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release's files; its image is loaded on the node by digest."""
    folder = tmp_path_factory.mktemp("dist")
    files = Files(TAGS[0], REPOSITORY, PlainReport(sys.stderr), folder)
    digest = files.image()
    files.install_yaml(digest)
    files.chart(digest)
    (archive,) = folder.glob("*-image-*.tar")
    node.load(archive)
    node.ctr("images", "tag", f"{REPOSITORY}:{TAGS[0]}", f"{REPOSITORY}@{digest}")
    return folder


def install(plane: ControlPlane, file: Path) -> None:
    """Apply a file, and wait until its Deployments are rolled out."""
    plane.kubectl("apply", "-f", str(file))
    await_rollouts(plane)


@pytest.mark.timeout(900)
def test_install_yaml_installs_and_upgrades(plane: ControlPlane, dist: Path) -> None:
    objects_before = all_objects(plane)
    install(plane, dist / "install.yaml")
    ns = Namespace.create_new(plane, "one-file")
    ns.eventually(ns.holds_pods)
    held_pod = ns.create(pod("held", {"delay": "3"}))
    assert ns.eventually(lambda: ns.releases().get("held", 0.0)) >= created(held_pod) + 3

    file = dist / "next.yaml"
    text, count = re.subn(
        r"@sha256:[0-9a-f]{64}", f":{TAGS[1]}", (dist / "install.yaml").read_text()
    )
    file.write_text(text)
    with creating(ns) as load:
        install(plane, file)
    assert (count, load.failures, load.ungated) == (2, [], [])
    assert load.made > 100
    uninstall(plane, "now")
    plane.kubectl("delete", "namespace", ns.namespace, timeout=200)
    assert all_objects(plane) == objects_before


@pytest.mark.timeout(900)
def test_chart_installs_upgrades_rolls_back_and_uninstalls(
    plane: ControlPlane, dist: Path, tmp_path: Path
) -> None:
    objects_before = all_objects(plane)
    release = Release(plane, tmp_path)
    chart = str(dist / f"holdfast-{TAGS[0]}.tgz")
    release.helm("install", chart, "--create-namespace", *_WAIT)
    first_image = release.image()
    assert first_image.startswith(f"{REPOSITORY}@sha256:")
    ns = Namespace.create_new(plane, "chart")
    ns.eventually(ns.holds_pods)

    container = {"name": "main", "image": node_plan.PAUSE_IMAGE, "imagePullPolicy": "Never"}
    ns.create(pod("real", {"delay": "3"}, containers=[container]))
    ns.kubectl("wait", "--for=condition=Ready", "pod/real", "--timeout=60s")
    user = f"system:serviceaccount:{ELSEWHERE}:holdfast-controller"
    label = ("label", "pods", "-l", "app.kubernetes.io/component=controller", "x=y")
    as_controller = ("--as", user, "--namespace", ELSEWHERE, "--dry-run=server")
    message = refusal(plane.kubectl, *label, *as_controller)
    assert "holdfast-controller may not change metadata.labels" in message
    options = ("--image=registry.k8s.io/pause:3.10", "--annotations=holdfast.dev/delay=15")
    ns.kubectl("run", "held", *options)  # as the README shows
    assert gates(ns.get("pod", "held")) == ["holdfast.dev/delay"]

    with creating(ns) as load:
        release.helm("upgrade", chart, f"--set=image.tag={TAGS[1]}", *_WAIT)
        await_rollouts(plane, ELSEWHERE)
        assert release.image() == f"{REPOSITORY}:{TAGS[1]}"
        release.helm("rollback", "1", *_WAIT)
        await_rollouts(plane, ELSEWHERE)
    assert release.image() == first_image
    assert (load.failures, load.ungated) == ([], [])
    assert load.made > 100

    plane.kubectl("delete", "namespace", ns.namespace, timeout=200)
    ns = Namespace.create_new(plane, "chart-uninstall")
    pods = ns.create_pods(pod(f"held-{n}", {"delay": "15"}) for n in range(5))
    release.helm("uninstall", "--timeout=300s")
    check_released_on_time(ns, pods)
    plane.kubectl("delete", "namespace", ns.namespace, ELSEWHERE, timeout=200)
    assert all_objects(plane) == objects_before
