"""`make up`: run a cluster with Holdfast, to try it out."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from controlplane.components import NAMES
from controlplane.launcher import ControlPlane
from demo.command import Command
from demo.walkthrough import EXAMPLE


def run(build: Path, nodes: int) -> None:
    """Run the cluster until Ctrl-C, then return normally."""
    build.mkdir(exist_ok=True)
    log = build / "up-holdfast.log"
    log.unlink(missing_ok=True)
    click.echo(f"holdfast: starting Kubernetes with {nodes} nodes")
    with (
        ControlPlane(nodes=nodes) as cluster,
        Command("dev", "--kubeconfig", str(cluster.kubeconfig), log=log) as holdfast,
    ):
        click.echo(f"""holdfast: running (log: {log})
In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  export PATH={Path(sys.executable).parent}:{cluster.bin}:$PATH
  kubectl apply -f {EXAMPLE}
  kubectl scale deployment busybox --replicas=1
  holdfast list --watch

Press Ctrl-C to stop it and remove everything.""")
        try:
            while True:
                time.sleep(1)
                holdfast.check()
                for name in NAMES:
                    cluster.process(name).check()
        except KeyboardInterrupt:
            click.echo("\nholdfast: stopping")
