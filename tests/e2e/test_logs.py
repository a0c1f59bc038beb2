"""The log of a running Holdfast: one line each, findable in the audit log, and no secret in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from demo.command import Command
from tests.e2e.world import World, gates, pod

ANNOTATION = "pods.holdfast.dev/review"


def lines(log: Path) -> list[dict[str, Any]]:
    """Read the lines that are JSON; those that tell people that it is ready are not."""
    found = log.read_text().splitlines()
    return [json.loads(line) for line in found if not line.startswith("holdfast: ")]


def test_each_decision_is_one_line_and_is_in_the_audit_log(
    bare_world: Callable[[], World], log: Path
) -> None:
    world = bare_world()
    kubeconfig = world.plane.kubeconfig
    options = ("--log-level", "debug", "--log-format", "json")
    with Command("dev", "--kubeconfig", str(kubeconfig), *options, log=log):
        world.apply(pod("held", {"delay": "1"}))
        world.refusal(pod("refused", {"delay": "so\non\x1b[31m" + "x" * 500}))
        world.eventually(lambda: not gates(world.get("pod", "held")))
    told = lines(log)
    (admitted,) = [one for one in told if one.get("outcome") == "patched"]
    (refused,) = [one for one in told if one.get("outcome") == "refused"]
    (released,) = [one for one in told if one["message"].startswith("released ")]
    assert (admitted["level"], admitted["name"], admitted["review"]) == ("debug", "held", "mutate")
    assert (refused["level"], refused["name"], refused["namespace"]) == (
        "info",
        "refused",
        world.namespace,
    )
    assert "so\\non" in refused["reason"]
    assert len(refused["reason"]) < 300
    assert (released["level"], released["name"]) == ("info", "held")
    assert 0 <= released["lateness"] < 60

    audited = {
        event["annotations"][ANNOTATION]: event["responseStatus"]["code"]
        for event in world.eventually(
            lambda: [one for one in world.audit() if ANNOTATION in one.get("annotations", {})]
        )
    }
    assert audited[admitted["uid"]] == 201
    assert audited[refused["uid"]] == 422


def test_no_secret_is_logged(bare_world: Callable[[], World], log: Path) -> None:
    world = bare_world()
    token = world.kubectl("create", "token", "default").strip()
    world.kubectl("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin",
                  f"--serviceaccount={world.namespace}:default")  # fmt: skip
    config = yaml.safe_load(world.plane.kubeconfig.read_text())
    for one in config["users"]:
        one["user"] = {"token": token}
    kubeconfig = log.with_name("kubeconfig")
    kubeconfig.write_text(yaml.safe_dump(config))
    with Command("dev", "--kubeconfig", str(kubeconfig), "--log-level", "debug", log=log):
        world.apply(pod("held", {"delay": "1"}))
        world.eventually(lambda: not gates(world.get("pod", "held")))
    text = log.read_text()
    assert "released" in text
    assert token not in text
    assert token.rpartition(".")[2] not in text
    assert "PRIVATE KEY" not in text
    assert base64.b64encode(b"-----BEGIN").decode()[:12] not in text
