"""Build the control plane's programs, or find them in the cache."""

from __future__ import annotations

import os
from pathlib import Path

from controlplane import cache, versions
from controlplane.compiler import Compiler
from controlplane.errors import ControlPlaneError
from controlplane.golang import ensure_go
from controlplane.modules import KUBERNETES, ModuleSet
from controlplane.progress import Report, Step, console_report

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
"""As in envtest: a folder with etcd, kube-apiserver and kubectl to use instead."""
_NOT_FROM_ASSETS = {"kwok", "kubevirt-objects"}  # the files alongside match the pinned versions


def ensure(report: Report | None = None, modules: ModuleSet = KUBERNETES) -> Path:
    """Return the folder with the set's binaries, built if not cached.

    `report` receives the progress; None shows it on standard error. The set's files are alongside
    the folder (`stages/` for Kubernetes, `objects.json` for KubeVirt). Raises ControlPlaneError.
    """
    if report is None:
        with console_report() as console:
            return ensure(console, modules)
    assets = _of_version(modules, report) or _assets(modules)
    if not assets:
        return _cached(modules, report) / "bin"
    missing = modules.only(modules.packages.keys() - assets.keys())
    folder = cache.root() / modules.key()
    built = folder if is_complete(folder, modules) else _cached(missing, report)
    return _linked(assets, built, missing)


def is_complete(folder: Path, modules: ModuleSet) -> bool:
    """Return whether all files of the set are in `folder`; a user may have deleted some."""
    return all(os.access(folder / "bin" / name, os.X_OK) for name in modules.packages) and all(
        (folder / path).is_file() for path in modules.alongside()
    )


def _cached(modules: ModuleSet, report: Report) -> Path:
    folder = cache.root() / modules.key()
    if is_complete(folder, modules):
        return folder
    step = Step("waiting for another process that builds the same programs")
    with cache.locked(folder.with_suffix(".lock"), lambda: report(step)):
        if not is_complete(folder, modules):
            report(Step(f"building {modules.name} (takes a few minutes the first time)"))
            go = ensure_go(report)
            with cache.publishing(folder) as unfinished:
                Compiler(go, modules, folder.with_suffix(".log"), report).build(unfinished)
    return folder


def _of_version(modules: ModuleSet, report: Report) -> dict[str, Path]:
    """Return the binaries of the older version that the environment names, built if not cached."""
    version = os.environ.get(versions.VARIABLE)
    older = versions.pinned(version) if version and modules is KUBERNETES else None
    if older is None:
        return {}
    folder = _cached(older, report) / "bin"
    return {name: folder / name for name in older.packages}


def _assets(modules: ModuleSet) -> dict[str, Path]:
    """Return the set's binaries in the folder that the environment names."""
    setting = os.environ.get(ASSETS_VARIABLE)
    if not setting:
        return {}
    folder = Path(setting).absolute()
    if not folder.is_dir():
        raise ControlPlaneError(
            f"{ASSETS_VARIABLE} names {folder}, which is not a folder; unset it, or set it to "
            "a folder with etcd, kube-apiserver and kubectl"
        )
    names = (name for name in modules.packages if name not in _NOT_FROM_ASSETS)
    return {name: folder / name for name in names if os.access(folder / name, os.X_OK)}


def _linked(assets: dict[str, Path], built: Path, missing: ModuleSet) -> Path:
    """Return a folder with links to the given binaries and to the built ones."""
    links = {f"bin/{name}": path for name, path in assets.items()}
    links |= {f"bin/{name}": built / "bin" / name for name in missing.packages}
    links |= {path: built / path for path in missing.alongside()}
    target = cache.root() / f"assets-{cache.digest([repr(sorted(links.items())).encode()])}"
    with cache.locked(target.with_suffix(".lock")):
        if not all((target / path).exists() for path in links):
            with cache.publishing(target) as folder:
                for path, source in links.items():
                    (folder / path).parent.mkdir(exist_ok=True)
                    (folder / path).symlink_to(source)
    return target / "bin"
