"""Read the records of VMs, and what is reported about them."""

import os
import subprocess
import sys

from tests.e2e import vms
from tests.e2e.namespace import Namespace, Object
from tests.e2e.vms import FEDORA

RECORD, RECORD_UID = "holdfast.dev/sticky-node", "holdfast.dev/sticky-node-uid"
FINALIZER = "holdfast.dev/sticky"
ORPHANED_SECONDS = 150.0
"""Until Kubernetes deletes a pod of a deleted node: it checks every 20 s, and then waits 40 s."""


def annotated(ns: Namespace, name: str = FEDORA) -> dict[str, str]:
    return dict(ns.get("vm", name)["metadata"].get("annotations") or {})


def record(ns: Namespace, name: str = FEDORA, key: str = RECORD) -> str:
    return annotated(ns, name).get(key, "")


def landed_and_recorded(ns: Namespace, name: str = FEDORA) -> Object:
    """Wait until a VM runs and its node is recorded; return its pod."""
    pod = vms.landed(ns, name)
    ns.eventually(lambda: record(ns, name) == vms.node_of(pod))
    return pod


def kept(ns: Namespace) -> list[str]:
    """Return the names of the pods with our finalizer."""
    return [
        pod["metadata"]["name"]
        for pod in ns.all("pods")
        if FINALIZER in pod["metadata"].get("finalizers", ())
    ]


def run_again(ns: Namespace, old_pod: Object) -> Object:
    return vms.landed(ns, other_than=vms.uid(old_pod))


def notes(ns: Namespace, kind: str, reason: str) -> list[str]:
    return [
        event["note"]
        for event in ns.all("events.events.k8s.io")
        if (event["regarding"]["kind"], event["reason"]) == (kind, reason)
    ]


def command(ns: Namespace, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.webhook", *arguments, "-n", ns.namespace],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KUBECONFIG": str(ns.plane.kubeconfig)},
    ).stdout
