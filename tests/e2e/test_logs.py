"""The log of a running Holdfast: a line per decision, linked to the audit log, no secrets."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from demo.command import Command
from tests.e2e.namespace import Namespace, gates, pod

ANNOTATION = "pods.holdfast.dev/review"


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the JSON lines; the startup messages are not JSON."""
    all_lines = log.read_text().splitlines()
    return [json.loads(line) for line in all_lines if not line.startswith("holdfast: ")]


def with_token(ns: Namespace, path: Path) -> str:
    """Write a kubeconfig with a token that may do everything, and return the token."""
    account = f"--serviceaccount={ns.namespace}:default"
    ns.kubectl("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", account)
    token = ns.kubectl("create", "token", "default").strip()
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return token


def test_decisions_are_logged_and_audited_without_secrets(plain_ns: Namespace, log: Path) -> None:
    ns, kubeconfig = plain_ns, log.with_name("kubeconfig")
    token = with_token(ns, kubeconfig)
    options = ("--log-level", "debug", "--log-format", "json")
    with Command("dev", "--kubeconfig", str(kubeconfig), *options, log=log):
        ns.apply(pod("held", {"delay": "1"}))
        ns.refusal(pod("refused", {"delay": "so\non\x1b[31m" + "x" * 500}))
        ns.eventually(lambda: not gates(ns.get("pod", "held")))
    records = lines(log)
    (admitted,) = [record for record in records if record.get("outcome") == "patched"]
    (refused,) = [record for record in records if record.get("outcome") == "refused"]
    (released,) = [record for record in records if record["message"].startswith("released ")]
    assert (admitted["level"], admitted["name"], admitted["review"]) == ("debug", "held", "mutate")
    assert (refused["level"], refused["name"], refused["namespace"]) == (
        "info",
        "refused",
        ns.namespace,
    )
    assert "so\\non" in refused["reason"]
    assert len(refused["reason"]) < 300
    assert (released["level"], released["name"]) == ("info", "held")
    assert 0 <= released["lateness"] < 60

    codes = {
        event["annotations"][ANNOTATION]: event["responseStatus"]["code"]
        for event in ns.eventually(
            lambda: [entry for entry in ns.audit() if ANNOTATION in entry.get("annotations", {})]
        )
    }
    assert codes[admitted["uid"]] == 201
    assert codes[refused["uid"]] == 422

    text = log.read_text()
    assert token not in text
    assert token.rpartition(".")[2] not in text
    assert "PRIVATE KEY" not in text
    assert base64.b64encode(b"-----BEGIN").decode()[:12] not in text
