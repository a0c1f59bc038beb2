"""Findings about the Deployments of an installation. Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.webhook.report.doctor.diagnosis import Finding, Level

WEBHOOK = "holdfast-webhook"
"""The Deployment of the admission server."""
_REPLICAS = 2


class FailingContainer(NamedTuple):
    """A container that does not run, with the kubelet's reason."""

    pod: str
    name: str
    reason: str
    has_run: bool


class DeploymentState(NamedTuple):
    """The numbers of wanted, updated and ready replicas of a Deployment."""

    namespace: str
    name: str
    wanted: int
    updated: int
    ready: int
    failing: Sequence[FailingContainer] = ()

    @property
    def remedy(self) -> str:
        """What to do if no replica works; empty if no problem is known."""
        kubectl = f"kubectl -n {self.namespace}"
        if not self.wanted:
            return (
                f"Deployment {self.name} is scaled to 0: {kubectl} scale deployment/{self.name} "
                f"--replicas={_REPLICAS}"
            )
        for container in self.failing:
            command = f"logs --previous {container.pod} -c {container.name}"
            return (
                f"run {kubectl} {command if container.has_run else f'describe pod {container.pod}'}"
            )
        return ""


def remedy(states: Sequence[DeploymentState], name: str) -> str:
    """Return what to do about a Deployment; empty if no problem is known."""
    return next((state.remedy for state in states if state.name == name), "")


def judge(state: DeploymentState) -> Iterator[Finding]:
    """Yield the finding on a Deployment and its containers."""
    about = "Deployment"
    if not state.wanted:
        yield Finding(Level.PROBLEM, about, f"{state.name} runs no pod", state.remedy)
    elif state.failing:
        first = state.failing[0]
        text = f"{state.name}: container {first.name} of pod {first.pod} is in {first.reason}"
        suffix = f", and {len(state.failing) - 1} more" if len(state.failing) > 1 else ""
        yield Finding(Level.PROBLEM, about, text + suffix, state.remedy)
    elif min(state.ready, state.updated) < state.wanted:
        text = (
            f"{state.name}: {state.ready} of {state.wanted} replicas are ready, "
            f"{state.updated} up to date"
        )
        cure = f"wait for it: kubectl -n {state.namespace} rollout status deployment/{state.name}"
        yield Finding(Level.WARNING, about, text, cure)
    else:
        yield Finding(Level.OK, about, f"{state.name}: all {state.wanted} replicas are ready")
