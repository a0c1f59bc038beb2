"""Attacks from any pod on the network."""

import base64
import json
import socket
from contextlib import suppress
from typing import Any

import pytest

from controlplane.errors import ControlPlaneError
from tests.e2e import fake_kubevirt, vms
from tests.e2e.fake_kubevirt import KUBEVIRT, STRANGER, create_as_kubevirt
from tests.e2e.installed import endpoint_address
from tests.e2e.namespace import DEFINITIONS, gates, pod
from tests.e2e.secured import (
    HERE,
    THERE,
    WEBHOOK,
    Secured,
    fetch,
    sticky_vm,
)
from tests.support.builders import make_review

pytestmark = pytest.mark.xdist_group("privilege")

KUBEVIRT_OBJECT = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "KubeVirt",
    "metadata": {"name": "kubevirt"},
    "spec": {},
}


def test_metrics_and_health_reveal_no_names(secured: Secured) -> None:
    ns = secured.ns("hushed")
    ns.apply(pod("hushed-released", {"delay": "1"}), pod("hushed-held", {"delay": "1h"}))
    assert "soon" in ns.refusal(pod("hushed-refused", {"delay": "soon"}))
    _, instance = fake_kubevirt.make(ns, "hushed-vm")
    create_as_kubevirt(ns, fake_kubevirt.launcher(instance))
    fake_kubevirt.run(ns, "hushed-vm")
    ns.eventually(lambda: fake_kubevirt.record(ns, "hushed-vm"))
    second_pod = fake_kubevirt.launcher(instance)
    second_pod["metadata"]["name"] = "virt-launcher-hushed-vm-again"
    assert "affinity" in create_as_kubevirt(ns, second_pod)["spec"]
    ns.eventually(lambda: not gates(ns.get("pod", "hushed-released")))
    controller = f"http://{secured.controlling.address}"
    responses = [secured.ask(f"/{name}") for name in ("metrics", "healthz", "readyz", "conditions")]
    responses += [fetch(f"{controller}/{name}") for name in ("metrics", "healthz", "readyz")]

    assert [status for status, _ in responses] == [200] * 7
    assert "holdfast_reviews_total" in responses[0][1]
    assert "holdfast_release_lateness_seconds" in responses[4][1]
    assert 'holdfast_lookup_duration_seconds_count{outcome="answered"}' in responses[0][1]
    assert 'holdfast_vm_records_total{outcome="recorded"}' in responses[4][1]
    assert not [text for _, text in responses if "hushed" in text or HERE in text or THERE in text]
    assert secured.ask("/")[0] == 404 == fetch(f"{controller}/")[0]


def test_forged_review_reveals_a_vms_node_only_with_its_uid(secured: Secured) -> None:
    ns = secured.ns("forged")
    launcher = sticky_vm(ns, THERE)

    def ask(**owner: str) -> Any:
        forged = {"metadata": dict(launcher["metadata"]), "spec": {"containers": []}}
        forged["metadata"]["ownerReferences"] = [launcher["metadata"]["ownerReferences"][0] | owner]
        user = {"username": KUBEVIRT}
        status, text = secured.ask(
            "/mutate", make_review(forged, namespace=ns.namespace, userInfo=user)
        )
        assert status == 200
        return json.loads(text)["response"]

    guess = "00000000-0000-0000-0000-000000000000"
    existing, missing = ask(uid=guess), ask(uid=guess, name="xx")
    assert not existing["allowed"]
    message = existing["status"]["message"].replace('"vm"', '"xx"')
    assert message == missing["status"]["message"], "it reveals whether there is a VM"
    assert THERE not in message
    assert THERE in base64.b64decode(ask()["patch"]).decode(), "the UID is the key to it"


def test_kubevirt_account_is_found_through_the_kubevirt_object(secured: Secured) -> None:
    ns, cnv_ns = secured.ns("vms-of-cnv"), secured.ns("openshift-cnv")
    manifest = sticky_vm(ns, THERE)

    def pinned() -> list[str]:
        """Return the accounts whose pods are pinned to the VM's node."""
        return [
            user
            for user in (KUBEVIRT, STRANGER)
            if "affinity" in create_as_kubevirt(ns, manifest, "--dry-run=server", user=user)["spec"]
        ]

    def is_pinned(user: str) -> bool:
        with suppress(ControlPlaneError):  # rejected, as the account changed between the webhooks
            return pinned() == [user]
        return False

    assert pinned() == [KUBEVIRT]
    ns.plane.api.create(DEFINITIONS, vms.definition("kubevirts.kubevirt.io"))
    ns.definitions_established()
    cnv_ns.create(KUBEVIRT_OBJECT)
    try:
        ns.eventually(lambda: is_pinned(STRANGER))
    finally:
        cnv_ns.kubectl("delete", "kubevirt", "kubevirt")
        ns.eventually(lambda: is_pinned(KUBEVIRT))


def test_webhook_only_reads_single_vms_and_lists_kubevirts(secured: Secured) -> None:
    ns = secured.ns("reviewed")
    create_as_kubevirt(ns, sticky_vm(ns, HERE))
    log = secured.installed.plane.audit_log.read_text().splitlines()
    events = [json.loads(line) for line in log if f'"{WEBHOOK}"' in line]
    requests = {
        (event["verb"], event["objectRef"]["resource"]) for event in events if "objectRef" in event
    }

    assert {("get", "virtualmachines"), ("get", "virtualmachineinstances")} <= requests
    assert {request for request in requests if request[0] != "get"} == {("list", "kubevirts")}


def test_status_page_is_served_on_loopback_only(secured: Secured) -> None:
    ns = secured.ns("shown")
    ns.apply(pod("shown-held", {"delay": "1h"}))
    url = f"http://localhost:{secured.status_port}/"
    ns.eventually(lambda: "shown-held" in fetch(url)[1])

    with socket.socket() as probe:
        assert probe.connect_ex((endpoint_address(), secured.status_port)) != 0
    status, text = fetch(url, headers={"Host": "rebound.example.com"})
    assert status == 403
    assert "shown-held" not in text
