from pathlib import Path

import pytest

from controlplane import versions
from controlplane.errors import ControlPlaneError
from controlplane.golang import Go
from controlplane.modules import KUBERNETES


def test_oldest_supported_version_is_pinned() -> None:
    assert versions.available()[0] == "1.30.14"
    modules = versions.pinned("1.30.14")
    assert modules is not None
    flags = " ".join(modules.flags())
    assert "-X k8s.io/component-base/version.gitVersion=v1.30.14" in flags
    assert modules.packages.keys() == {
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
    }


def test_newest_version_needs_no_separate_modules() -> None:
    assert versions.pinned(versions.NEWEST) is None
    assert f"version.gitVersion=v{versions.NEWEST}" in " ".join(KUBERNETES.flags())


def test_unpinned_version_error_names_the_fix() -> None:
    with pytest.raises(ControlPlaneError, match=r"'1\.29\.0' is not pinned.*pin 1\.29\.0"):
        versions.pinned("1.29.0")


@pytest.mark.parametrize("version", ["1.30", "v1.30.14", "2.0.0", "1.30.14/../..", ""])
def test_invalid_version_is_rejected(version: str) -> None:
    with pytest.raises(ControlPlaneError, match="not a version of Kubernetes"):
        versions.pin(version, Go(Path("go")))
