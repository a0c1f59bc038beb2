"""`holdfast doctor` on an installation: whole, and with each of its parts broken.

Service, Secrets, Lease and webhook configurations are those of the manifests; what is broken stays
so, since no controller runs after the first test.
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
from tests.e2e.installed import KINDS, SERVICE, Installation, port
from tests.e2e.namespace import Object, pod
from tests.e2e.test_cli import Cli

pytestmark = pytest.mark.xdist_group("installed")

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Findings:
    """The output of doctor: the exit status, and for each check its level, text and fix."""

    status: int
    lines: list[tuple[str, str, str, str]]

    @property
    def levels(self) -> dict[str, str]:
        return {about: level for level, about, _, _ in self.lines}

    def of(self, about: str) -> tuple[str, str, str]:
        """Give the level, the text and the cure of what is worst about one thing."""
        found = [(level, text, cure) for level, name, text, cure in self.lines if name == about]
        return max(found, key=lambda one: ("OK", "WARNING", "PROBLEM").index(one[0]))


def cli(of: Installation) -> Cli:
    return Cli(of.plane.kubeconfig, of.ns.namespace)


def doctor(of: Installation) -> Findings:
    done = cli(of).run("doctor")
    assert done.stderr == ""
    lines = re.findall(
        r"^(OK|WARNING|PROBLEM|UNKNOWN) +([\w ]+): (.+)\n(?: {9}(.+)\n)?", done.stdout, re.MULTILINE
    )
    assert len(re.findall(r"^\S", done.stdout, re.MULTILINE)) == len(lines)
    return Findings(done.returncode, lines)


def test_healthy_installation(installed: Installation) -> None:
    found = doctor(installed)
    assert found.levels == dict.fromkeys(
        (
            *("API server", "clock", "webhooks", "caBundle", "server", "certificate"),
            *("configuration", "leader", "held pods", "freezes", "guard", "Deployment"),
        ),
        "OK",
    )
    assert found.status == 0
    assert found.of("server")[1] == f"2 ready at Service {NAMESPACE}/{SERVICE}"


@pytest.fixture(scope="module")
def left_alone(installed: Installation) -> Iterator[Installation]:
    """The same without its controller, which would mend what is broken."""
    installed.controllers[0].stop()
    yield installed
    installed.controllers[0].start()
    installed.ready()


def test_no_leader(left_alone: Installation) -> None:
    found = doctor(left_alone)
    level, text, cure = found.of("leader")
    assert (found.status, level) == (1, "PROBLEM")
    assert text.startswith("no controller is the leader; the last Lease expired ")
    assert "there is no Deployment holdfast-controller" in cure  # processes run it here
    assert {level for about, level in found.levels.items() if about != "leader"} == {"OK"}


def test_held_pod_without_a_controller(left_alone: Installation) -> None:
    ns = left_alone.ns
    ns.create_when_called(pod("stuck", {"delay": "1"}))
    ns.eventually(lambda: doctor(left_alone).levels["held pods"] == "PROBLEM")
    found = doctor(left_alone)
    _, text, cure = found.of("held pods")
    assert text == f"1 of 1 is overdue: {ns.namespace}/stuck"
    assert "holdfast release" in cure
    assert found.of("leader")[1].endswith("; 1 held pod waits")
    assert found.status == 1
    cli(left_alone).here("release", "stuck")
    assert doctor(left_alone).levels["held pods"] == "OK"


@pytest.fixture
def spoilt(left_alone: Installation) -> Iterator[Installation]:
    before = left_alone.configurations()
    leaf = left_alone.secret(LEAF)
    yield left_alone
    for kind, one in zip(KINDS, before, strict=True):
        patch(left_alone, kind, {"op": "add", "path": "/webhooks", "value": one["webhooks"]})
    keep(left_alone, leaf)
    for number, replica in enumerate(left_alone.replicas):
        left_alone.join(number, port(replica))


def patch(installed: Installation, kind: str, operation: Object) -> None:
    operations = json.dumps([operation])
    installed.kubectl("patch", kind, "holdfast", "--type=json", "-p", operations)


def keep(installed: Installation, leaf: dict[str, str]) -> None:
    """Put a certificate into the Secret that is served."""
    text = json.dumps({"data": leaf})
    installed.kubectl("patch", "secret", LEAF, "--type=merge", "-p", text)


@pytest.mark.parametrize(
    ("kinds", "lost"),
    [
        pytest.param(KINDS, "pods are not held", id="both"),
        pytest.param(KINDS[:1], "pods are not held", id="mutating"),
        pytest.param(KINDS[1:], "invalid values are accepted", id="validating"),
    ],
)
def test_configurations_without_webhooks(
    spoilt: Installation, kinds: tuple[str, ...], lost: str
) -> None:
    for kind in kinds:
        patch(spoilt, kind, {"op": "replace", "path": "/webhooks", "value": []})
    found = doctor(spoilt)
    level, text, cure = found.of("webhooks")
    assert (found.status, level) == (1, "PROBLEM")
    assert text.endswith(f"webhook is registered, so {lost}")
    assert cure.startswith("start the controller")


def test_empty_ca_bundle(spoilt: Installation) -> None:
    path = "/webhooks/0/clientConfig/caBundle"
    patch(spoilt, KINDS[0], {"op": "remove", "path": path})
    found = doctor(spoilt)
    level, text, cure = found.of("caBundle")
    assert (found.status, level) == (1, "PROBLEM")
    assert text == "CA 1 of webhook pods.holdfast.dev (mutating): no certificate"
    assert "leading controller writes the caBundle" in cure


@pytest.mark.parametrize(
    ("starts", "level", "told"),
    [
        pytest.param(-24 * DAY, "WARNING", "is valid until", id="expires soon"),
        pytest.param(-31 * DAY, "PROBLEM", "expired at", id="has expired"),
    ],
)
def test_expired_or_expiring_certificate(
    spoilt: Installation, starts: timedelta, level: str, told: str
) -> None:
    data = {key: base64.b64decode(value) for key, value in spoilt.secret(CA).items()}
    keep(spoilt, leaf_of(authority.KeyPair(data["tls.crt"], data["tls.key"]), starts))
    found = doctor(spoilt)
    assert found.of("certificate")[0] == level
    assert told in found.of("certificate")[1]
    assert "the controller renews it" in found.of("certificate")[2]


def test_certificate_of_another_ca(spoilt: Installation) -> None:
    other = authority.new_ca("another", now=datetime.now(UTC))
    keep(spoilt, leaf_of(other, timedelta()))
    level, text, cure = doctor(spoilt).of("certificate")
    assert level == "PROBLEM"
    assert text.startswith("no CA in the registered caBundle issued the certificate of Service ")
    assert "make GitOps tools ignore that field" in cure


def leaf_of(ca: authority.KeyPair, starts: timedelta) -> dict[str, str]:
    """Make what the Secret holds: a leaf for 30 days, issued so long ago."""
    name = f"{SERVICE}.{NAMESPACE}.svc"
    now = datetime.now(UTC) + starts
    pair = authority.issue(ca, common_name=name, now=now, lifetime=30 * DAY, dns_names=[name])
    data = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def test_no_ready_server(spoilt: Installation) -> None:
    for number, replica in enumerate(spoilt.replicas):
        spoilt.join(number, port(replica), ready=False)
    found = doctor(spoilt)
    level, text, cure = found.of("server")
    assert (found.status, level) == (1, "PROBLEM")
    assert text.startswith("no admission server is ready at Service ")
    assert "check the pods of Deployment holdfast-webhook" in cure
