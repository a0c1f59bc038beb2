"""`holdfast doctor` on a healthy installation, and with each of its parts broken.

The Service, Secrets, Lease and webhook configurations are those of the manifests. No controller
runs after the first test, so nothing repairs the broken parts.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.certs import authority
from tests.e2e.accounts import NAMESPACE
from tests.e2e.certificate_secrets import CA, LEAF
from tests.e2e.cli.commands import Cli
from tests.e2e.installed import KINDS, SERVICE, Installation, port
from tests.e2e.namespace import Object

pytestmark = pytest.mark.xdist_group("installed")

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Findings:
    """The output of doctor: the exit status, and for each check its level, text and fix."""

    status: int
    lines: list[tuple[str, str, str, str]]

    @property
    def levels(self) -> dict[str, str]:
        return {check: level for level, check, _, _ in self.lines}

    def of(self, check: str) -> tuple[str, str, str]:
        """Return the level, text and fix of the worst finding of a check."""
        findings = [(level, text, fix) for level, name, text, fix in self.lines if name == check]
        return max(findings, key=lambda finding: ("OK", "WARNING", "PROBLEM").index(finding[0]))


def cli(target: Installation) -> Cli:
    return Cli(target.plane.kubeconfig, target.ns.namespace)


def doctor(target: Installation) -> Findings:
    result = cli(target).run("doctor")
    assert result.stderr == ""
    lines = re.findall(
        r"^(OK|WARNING|PROBLEM|UNKNOWN) +([\w ]+): (.+)\n(?: {9}(.+)\n)?",
        result.stdout,
        re.MULTILINE,
    )
    assert len(re.findall(r"^\S", result.stdout, re.MULTILINE)) == len(lines)
    return Findings(result.returncode, lines)


def test_healthy_installation(installed: Installation) -> None:
    findings = doctor(installed)
    assert findings.levels == dict.fromkeys(
        (
            *("API server", "clock", "webhooks", "caBundle", "server", "certificate"),
            *("configuration", "leader", "held pods", "freezes", "guard", "Deployment"),
        ),
        "OK",
    )
    assert findings.status == 0
    assert findings.of("server")[1] == f"2 ready at Service {NAMESPACE}/{SERVICE}"


@pytest.fixture(scope="module")
def without_controller(installed: Installation) -> Iterator[Installation]:
    """The installation without its controller, which would repair the broken parts."""
    installed.controllers[0].stop()
    yield installed
    installed.controllers[0].start()
    installed.ready()


def test_no_leader(without_controller: Installation) -> None:
    findings = doctor(without_controller)
    level, text, fix = findings.of("leader")
    assert (findings.status, level) == (1, "PROBLEM")
    assert text.startswith("no controller is the leader; the last Lease expired ")
    assert "there is no Deployment holdfast-controller" in fix  # processes run it here
    assert {level for check, level in findings.levels.items() if check != "leader"} == {"OK"}


@pytest.fixture
def damaged(without_controller: Installation) -> Iterator[Installation]:
    before = without_controller.configurations()
    leaf = without_controller.secret(LEAF)
    yield without_controller
    for kind, configuration in zip(KINDS, before, strict=True):
        patch(
            without_controller,
            kind,
            {"op": "add", "path": "/webhooks", "value": configuration["webhooks"]},
        )
    write_leaf(without_controller, leaf)
    for number, replica in enumerate(without_controller.replicas):
        without_controller.join(number, port(replica))


def patch(installed: Installation, kind: str, operation: Object) -> None:
    operations = json.dumps([operation])
    installed.kubectl("patch", kind, "holdfast", "--type=json", "-p", operations)


def write_leaf(installed: Installation, leaf: dict[str, str]) -> None:
    """Write a certificate into the Secret that is served."""
    text = json.dumps({"data": leaf})
    installed.kubectl("patch", "secret", LEAF, "--type=merge", "-p", text)


@pytest.mark.parametrize(
    ("kind", "effect"),
    [
        pytest.param(KINDS[0], "pods are not held", id="mutating"),
        pytest.param(KINDS[1], "invalid values are accepted", id="validating"),
    ],
)
def test_configuration_without_webhooks(damaged: Installation, kind: str, effect: str) -> None:
    patch(damaged, kind, {"op": "replace", "path": "/webhooks", "value": []})
    findings = doctor(damaged)
    level, text, fix = findings.of("webhooks")
    assert (findings.status, level) == (1, "PROBLEM")
    assert text.endswith(f"webhook is registered, so {effect}")
    assert fix.startswith("start the controller")


def test_empty_ca_bundle(damaged: Installation) -> None:
    path = "/webhooks/0/clientConfig/caBundle"
    patch(damaged, KINDS[0], {"op": "remove", "path": path})
    findings = doctor(damaged)
    level, text, fix = findings.of("caBundle")
    assert (findings.status, level) == (1, "PROBLEM")
    assert text == "CA 1 of webhook pods.holdfast.dev (mutating): no certificate"
    assert "leading controller writes the caBundle" in fix


def test_expired_certificate(damaged: Installation) -> None:
    data = {key: base64.b64decode(value) for key, value in damaged.secret(CA).items()}
    write_leaf(damaged, leaf_of(authority.KeyPair(data["tls.crt"], data["tls.key"]), -31 * DAY))
    level, text, fix = doctor(damaged).of("certificate")
    assert level == "PROBLEM"
    assert "expired at" in text
    assert "the controller renews it" in fix


def test_certificate_of_another_ca(damaged: Installation) -> None:
    ca = authority.new_ca("another", now=datetime.now(UTC))
    write_leaf(damaged, leaf_of(ca, timedelta()))
    level, text, fix = doctor(damaged).of("certificate")
    assert level == "PROBLEM"
    assert text.startswith("no CA in the registered caBundle issued the certificate of Service ")
    assert "make GitOps tools ignore that field" in fix


def leaf_of(ca: authority.KeyPair, starts: timedelta) -> dict[str, str]:
    """Make the Secret's data: a leaf that is valid for 30 days, starting `starts` from now."""
    name = f"{SERVICE}.{NAMESPACE}.svc"
    now = datetime.now(UTC) + starts
    pair = authority.issue(ca, common_name=name, now=now, lifetime=30 * DAY, dns_names=[name])
    data = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def test_no_ready_server(damaged: Installation) -> None:
    for number, replica in enumerate(damaged.replicas):
        damaged.join(number, port(replica), ready=False)
    findings = doctor(damaged)
    level, text, fix = findings.of("server")
    assert (findings.status, level) == (1, "PROBLEM")
    assert text.startswith("no admission server is ready at Service ")
    assert "check the pods of Deployment holdfast-webhook" in fix
