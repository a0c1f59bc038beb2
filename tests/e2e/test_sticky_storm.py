"""VMs are started and stopped at random, while both of Holdfast's processes are killed at random.

`make test-storm` uses 200 VMs for five minutes; by default the test is shorter.
"""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.launcher import ControlPlane
from holdfast.webhook.kube.client import Cluster
from holdfast.webhook.model.kubevirt import (
    STICKY_NODE,
)
from tests.e2e.namespace import Namespace
from tests.e2e.two_processes import TwoProcesses
from tests.e2e.vm_storm import Storm, watching

pytestmark = pytest.mark.xdist_group("kubevirt")

VMS = int(os.environ.get("STORM_VMS", "24"))
SECONDS = float(os.environ.get("STORM_SECONDS", "60"))
SEED = int(os.environ.get("STORM_SEED", "6"))
ACTORS = 6
"""Threads that start and stop VMs."""
PATIENCE = 600.0
"""Seconds until all VMs run in the end: KubeVirt delays a VM that was stopped before it ran by up
to five minutes."""


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 2 * PATIENCE)
def test_vms_keep_their_nodes_under_random_restarts_and_kills(
    kubevirt: ControlPlane, tmp_path: Path
) -> None:
    ns = Namespace.create_new(kubevirt, "storm")
    source = random.Random(SEED)
    names = [f"vm-{number}" for number in range(VMS)]
    with (
        TwoProcesses(kubevirt, tmp_path) as processes,
        closing(Cluster.connect(kubevirt.kubeconfig)) as cluster,
    ):
        storm = Storm(cluster, ns.namespace, names)
        with watching(storm), ThreadPoolExecutor(ACTORS + 1) as pool:
            storm.create()
            deadline = time.monotonic() + SECONDS
            futures = [
                pool.submit(storm.act, random.Random(source.random()), deadline)
                for _ in range(ACTORS)
            ]
            futures.append(
                pool.submit(storm.kill, processes, random.Random(source.random()), deadline)
            )
            for future in futures:
                future.result()
            began = time.monotonic()
            for name in names:
                storm.run_strategy(name, "Always")
            ns.eventually(lambda: not storm.unsettled(), PATIENCE)
            settled = time.monotonic() - began

        returned = sum(len(nodes) > 1 for nodes in storm.seen.nodes.values())
        print(
            f"\n{VMS} VMs, {SECONDS:.0f} s, seed {SEED}: {dict(storm.deeds)}; killed "
            f"{dict(storm.kills)}; {len(storm.seen.bound)} pods bound, {returned} VMs returned; "
            f"all ran {settled:.0f} s after the last action"
        )
        moved = {name: nodes for name, nodes in storm.seen.nodes.items() if len(set(nodes)) != 1}
        assert moved == {}
        records = {
            vm["metadata"]["name"]: vm["metadata"].get("annotations", {}).get(STICKY_NODE)
            for vm in ns.all("vm")
        }
        assert records == {name: storm.seen.nodes[name][0] for name in names}
        assert returned >= VMS // 5  # otherwise there was too little load
    kubevirt.kubectl("delete", "namespace", ns.namespace, "--wait=false")
