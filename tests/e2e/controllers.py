"""Run a controller without the rest of Holdfast, and make pods for it."""

from pathlib import Path

from demo.command import Command
from tests.e2e.accounts import NAMESPACE
from tests.e2e.namespace import Object, pod

GATE = "holdfast.dev/delay"


def controller(kubeconfig: Path, log: Path, *options: str) -> Command:
    arguments = ["--kubeconfig", str(kubeconfig), "--health-port", "0", *options]
    return Command("controller", *arguments, log=log)


def candidate(kubeconfig: Path, log: Path) -> Command:
    """Run a controller with leader election."""
    return controller(kubeconfig, log, "--leader-elect", "--namespace", NAMESPACE)


def gated(name: str, delay: float) -> Object:
    """Make a pod that is held for this many seconds."""
    return pod(name, {"delay": f"{delay:.3f}s"}, schedulingGates=[{"name": GATE}])
