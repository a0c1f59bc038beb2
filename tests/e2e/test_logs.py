"""The log of a running Holdfast: one line each, findable in the audit log, and no secret in it."""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from demo.command import Command
from tests.e2e.namespace import Namespace, gates, pod

ANNOTATION = "pods.holdfast.dev/review"


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the JSON lines; the lines for people at startup are not JSON."""
    found = log.read_text().splitlines()
    return [json.loads(line) for line in found if not line.startswith("holdfast: ")]


def with_token(ns: Namespace, path: Path) -> str:
    """Write a kubeconfig with a token that may do everything, and return the token."""
    account = f"--serviceaccount={ns.namespace}:default"
    ns.kubectl("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", account)
    token = ns.kubectl("create", "token", "default").strip()
    config = yaml.safe_load(ns.plane.kubeconfig.read_text())
    for each in config["users"]:
        each["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return token


def test_each_decision_is_one_line_and_is_in_the_audit_log_and_no_secret_is_logged(
    plain_ns: Namespace, log: Path
) -> None:
    ns, kubeconfig = plain_ns, log.with_name("kubeconfig")
    token = with_token(ns, kubeconfig)
    options = ("--log-level", "debug", "--log-format", "json")
    with Command("dev", "--kubeconfig", str(kubeconfig), *options, log=log):
        ns.apply(pod("held", {"delay": "1"}))
        ns.refusal(pod("refused", {"delay": "so\non\x1b[31m" + "x" * 500}))
        ns.eventually(lambda: not gates(ns.get("pod", "held")))
    told = lines(log)
    (admitted,) = [one for one in told if one.get("outcome") == "patched"]
    (refused,) = [one for one in told if one.get("outcome") == "refused"]
    (released,) = [one for one in told if one["message"].startswith("released ")]
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

    audited = {
        event["annotations"][ANNOTATION]: event["responseStatus"]["code"]
        for event in ns.eventually(
            lambda: [one for one in ns.audit() if ANNOTATION in one.get("annotations", {})]
        )
    }
    assert audited[admitted["uid"]] == 201
    assert audited[refused["uid"]] == 422

    text = log.read_text()
    assert token not in text
    assert token.rpartition(".")[2] not in text
    assert "PRIVATE KEY" not in text
    assert base64.b64encode(b"-----BEGIN").decode()[:12] not in text
