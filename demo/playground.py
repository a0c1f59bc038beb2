"""`make up`: a cluster with Holdfast in it, to try things on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from controlplane.components import NAMES
from controlplane.launcher import ControlPlane
from demo.command import Command
from demo.story import EXAMPLE


def run(build: Path, nodes: int) -> None:
    """Run until Ctrl-C, which ends it with exit status 0."""
    build.mkdir(exist_ok=True)
    log = build / "up-holdfast.log"
    log.unlink(missing_ok=True)
    click.echo(f"holdfast: starting a Kubernetes with {nodes} nodes")
    with (
        ControlPlane(nodes=nodes) as cluster,
        Command("dev", "--kubeconfig", str(cluster.kubeconfig), log=log) as holdfast,
    ):
        click.echo(f"""holdfast: running; its log is {log}
In another terminal:

  export KUBECONFIG={cluster.kubeconfig}
  export PATH={Path(sys.executable).parent}:{cluster.bin}:$PATH
  kubectl apply -f {EXAMPLE}
  kubectl scale deployment busybox --replicas=1
  holdfast list --watch

Ctrl-C ends it and removes everything.""")
        try:
            while True:
                time.sleep(1)
                holdfast.check()
                for name in NAMES:
                    cluster.process(name).check()
        except KeyboardInterrupt:
            click.echo("\nholdfast: stopping")
