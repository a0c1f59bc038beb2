"""A real Kubernetes on loopback for tests and the demo: built once, starts in seconds."""

from controlplane.build import ensure
from controlplane.errors import ControlPlaneError
from controlplane.launcher import ControlPlane

__all__ = ["ControlPlane", "ControlPlaneError", "ensure"]
