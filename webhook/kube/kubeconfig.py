"""Read kubeconfigs strictly and merge them like kubectl, for the `kubernetes` client.

The client's loader expands YAML aliases, takes quadratic time for base-60 numbers, and does not
limit the file size. It ignores impersonation (`as`), reads a token file only once without stripping
the line break, and continues without credentials after a credential plugin fails; see
`exec_plugin`.
"""

from __future__ import annotations

import copy
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import yaml

from holdfast.webhook import safe_yaml
from holdfast.webhook.errors import KubeconfigError, StartError
from holdfast.webhook.model import messages

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_LISTS = ("clusters", "contexts", "users")
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields with paths; relative paths are resolved against the kubeconfig's folder."""
_FROM_PLUGIN = ("token", "cert_file", "key_file", "expiry")
"""Fields of the loader that a credential plugin sets."""
_CURRENT = "current-context"
_DEFAULT = "~/.kube/config"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_Content = dict[str, Any]


class Kubeconfig:
    """One or more kubeconfigs. Missing files are skipped; for each entry the first file wins.

    Raises StartError with the file, the problem and the fix.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._contents = {file: _read(file) for file in files if file.exists()}
        if not self._contents:
            raise StartError("no such file")
        self._saved = copy.deepcopy(self._contents)

    def merged(self) -> _Content:
        """Return the merged kubeconfig, with absolute paths.

        Its users share their values with the files' contents, which lets `save` detect changes.
        """
        merged: _Content = {kind: _entries(self._contents, kind) for kind in _LISTS}
        contexts = [
            content[_CURRENT] for content in self._contents.values() if content.get(_CURRENT)
        ]
        return merged | {_CURRENT: contexts[0]} if contexts else merged

    def save(self) -> None:
        """Write back each file that the client has changed, for example by renewing a token."""
        for file, content in self._contents.items():
            if content != self._saved[file]:
                file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self._saved = copy.deepcopy(self._contents)


@dataclass(frozen=True, slots=True)
class Access:
    """Settings of a cluster connection that the client's configuration lacks."""

    renew: Callable[[], None]
    """Reads the token file and runs the credential plugin again. Raises like `load_access`."""
    namespace: str = ""
    """The default namespace; empty if none is set."""
    has_expired: Callable[[], bool] = lambda: False
    """Returns whether the credential plugin's credentials have expired."""
    impersonation: Sequence[tuple[str, str]] = ()
    """The headers that impersonate another user."""


def kubeconfigs(kubeconfig: Path | None) -> list[Path]:
    """Return the kubeconfigs to merge: the given one, or those that kubectl would use."""
    if kubeconfig:
        return [kubeconfig.expanduser()]
    names = (os.environ.get("KUBECONFIG") or _DEFAULT).split(os.pathsep)
    # unlike Path.expanduser, this accepts users without a home, as in many containers
    return [Path(os.path.expanduser(name)) for name in names if name]  # noqa: PTH111


def load_access(
    configuration: Configuration,
    kubeconfig: Path | None,
    context: str | None,
    overrides: Mapping[str, str],
) -> Access:
    """Fill in a configuration from kubeconfigs, like kubectl, or from the pod's ServiceAccount.

    Raises StartError, or an error of the client.
    """
    from kubernetes import config as kubernetes_config  # noqa: PLC0415 - slow to import

    files = kubeconfigs(kubeconfig)
    chosen = kubeconfig or context or overrides or os.environ.get("KUBECONFIG")
    # if KUBECONFIG is set, do not fall back to the pod's cluster, even if its files are missing
    if not chosen and not any(file.exists() for file in files):
        renew = partial(kubernetes_config.load_incluster_config, client_configuration=configuration)
        with suppress(kubernetes_config.ConfigException):
            renew()
            namespace = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else ""
            return Access(renew, namespace)
    return _load(configuration, files, context, overrides)


def _load(
    configuration: Configuration,
    files: Iterable[Path],
    context: str | None,
    overrides: Mapping[str, str],
) -> Access:
    """Load kubeconfigs for `load_access`. Renewal does not reread them: one may be a pipe."""
    from holdfast.webhook.kube.exec_plugin import PluginLoader  # noqa: PLC0415 - slow to import

    kubeconfig = Kubeconfig(files)
    merged = _overridden(kubeconfig.merged(), context, overrides)
    user = _active_user(merged, context)
    token_file = None if user.get("auth-provider") else user.pop("tokenFile", None)
    loader: Any = PluginLoader(  # type: ignore[no-untyped-call]
        config_dict=merged, active_context=context, config_persister=kubeconfig.save
    )

    lock = threading.Lock()

    def load(_: object = None) -> None:
        if token_file:
            try:
                user["token"] = Path(token_file).read_text(encoding="ascii").strip()
            except (OSError, ValueError) as exc:
                raise KubeconfigError(
                    f"tokenFile {token_file}: cannot be read ({exc}); name a readable file"
                ) from None
        with lock:
            for name in _FROM_PLUGIN:
                loader.__dict__.pop(name, None)
            loader.load_and_set(configuration)
        if token_file:
            configuration.refresh_api_key_hook = load  # type: ignore[assignment]

    def has_expired() -> bool:
        expiry: datetime | None = loader.__dict__.get("expiry")
        return "exec" in user and expiry is not None and expiry <= datetime.now(UTC)

    load()
    namespace = loader.current_context["context"].get("namespace")
    return Access(load, str(namespace or ""), has_expired, _impersonation(user))


def _overridden(merged: _Content, context: str | None, overrides: Mapping[str, str]) -> _Content:
    """Return the kubeconfig with another cluster or user in the active context."""
    selection = {**({"context": context} if context else {}), **overrides}
    for kind, name in selection.items():
        names = [str(entry["name"]) for entry in merged[f"{kind}s"]]
        if name not in names:
            listed = ", ".join(map(messages.quote, names)) or "none"
            raise KubeconfigError(f"no {kind} {messages.quote(name)}; there are: {listed}")
    if not overrides:
        return merged
    active = str(context or merged.get(_CURRENT, ""))
    settings = _named_entry(merged["contexts"], active, "context")
    others = [entry for entry in merged["contexts"] if entry["name"] != active]
    changed = {"name": active, "context": {**settings, **overrides}}
    return {**merged, "contexts": [*others, changed], _CURRENT: active}


def _active_user(merged: _Content, context: str | None) -> _Content:
    """Return the active context's user settings; empty if the client will report an error."""
    active = _named_entry(merged["contexts"], context or merged.get(_CURRENT), "context")
    return _named_entry(merged["users"], active.get("user"), "user")


def _impersonation(user: _Content) -> list[tuple[str, str]]:
    """Return the impersonation headers for a user's `as` fields. Raises KubeconfigError."""
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    lists = [groups, *(extra.values() if isinstance(extra, dict) else [None])]
    if not all(isinstance(entry, list) for entry in lists):
        raise KubeconfigError("a user's as-groups and as-user-extra need lists of strings")
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        headers += [(f"Impersonate-Extra-{quote(str(key), safe='')}", value) for value in values]
    pairs = [(name, str(value)) for name, value in headers if value]
    if pairs and not user.get("as"):
        raise KubeconfigError("a user's as-groups, as-uid and as-user-extra need 'as'")
    return pairs


def _named_entry(entries: Iterable[_Content], name: object, key: str) -> _Content:
    settings = next((entry.get(key) for entry in entries if entry["name"] == name), None)
    return settings if isinstance(settings, dict) else {}


def _read(file: Path) -> _Content:
    try:
        with file.open("rb") as stream:
            text = safe_yaml.read(stream)
        # as a stream: for a string, PyYAML's errors quote the line, which may contain a token
        content = yaml.load(io.BytesIO(text), safe_yaml.Loader)  # noqa: S506 - it is a SafeLoader
    except OSError as exc:
        raise StartError(f"{file}: cannot be read ({exc.strerror}); name a readable file") from None
    except safe_yaml.SizeError as exc:
        raise StartError(f"{file}: {exc}; remove what you do not use") from None
    except safe_yaml.AliasError:
        raise StartError(f"{file}: {safe_yaml.NO_ALIASES}") from None
    except safe_yaml.MISTAKES as exc:
        raise StartError(f"{file}: invalid YAML: {messages.one_line(exc)}") from None
    if not isinstance(content, dict):
        raise StartError(f"{file}: not a kubeconfig; create one with 'kubectl config view --raw'")
    return content


def _entries(contents: Mapping[Path, _Content], kind: str) -> list[_Content]:
    entries: dict[str, _Content] = {}
    for file, content in contents.items():
        for name, entry in _named(file, kind, content.get(kind) or []):
            entries.setdefault(
                name, _located(entry, kind.removesuffix("s"), file.absolute().parent)
            )
    return [*entries.values()]


def _named(file: Path, kind: str, entries: Any) -> Iterator[tuple[str, _Content]]:
    if not isinstance(entries, list):
        raise StartError(f"{file}: {kind}: not a list; start each entry with '- name:'")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("name") is None:
            raise StartError(f"{file}: {kind}[{index}]: no name; add one")
        yield str(entry["name"]), entry


def _located(entry: _Content, key: str, folder: Path) -> _Content:
    """Return an entry with its paths resolved against the folder of its file, like kubectl."""
    settings = entry.get(key)
    if not isinstance(settings, dict):
        return entry
    changes: _Content = {
        name: str(folder / path)
        for name in _PATHS
        if isinstance(path := settings.get(name), str) and path
    }
    program = settings.get("exec")
    if isinstance(program, dict) and os.sep in str(command := program.get("command")):
        changes["exec"] = {**program, "command": str(folder / str(command))}
    return {**entry, key: {**settings, **changes}}
