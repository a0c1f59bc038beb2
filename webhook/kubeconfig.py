"""Kubeconfigs: each is read once, strictly, and they are merged as kubectl merges them.

The `kubernetes` client gets what comes of it. Its own loader would follow aliases, spend the square
of their length on numbers of base 60, and read on for as long as there is something.
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from webhook import values, yaml_text
from webhook.errors import StartError

_LISTS = ("clusters", "contexts", "users")
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""What names a file, in the kubeconfig's own folder where it is no absolute path."""
_CURRENT = "current-context"

_Content = dict[str, Any]


class Kubeconfig:
    """What kubeconfigs say together.

    Of several, those that do not exist are passed over, and the first to say something wins.
    Raises StartError, which names the file, what is wrong with it, and the cure.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._contents = {file: _read(file) for file in files if file.exists()}
        if not self._contents:
            raise StartError("no such file")
        self._saved = copy.deepcopy(self._contents)

    def merged(self) -> _Content:
        """Make one document of them, in which all paths are absolute.

        What a user's own keys hold is shared with what was read of the file, for `save`.
        """
        made: _Content = {kind: _entries(self._contents, kind) for kind in _LISTS}
        named = [one[_CURRENT] for one in self._contents.values() if one.get(_CURRENT)]
        return made | {_CURRENT: named[0]} if named else made

    def save(self) -> None:
        """Write back each file of which the client has changed something: it renews tokens."""
        for file, content in self._contents.items():
            if content != self._saved[file]:
                file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        self._saved = copy.deepcopy(self._contents)


def _read(file: Path) -> _Content:
    try:
        with file.open("rb") as opened:
            text = yaml_text.read(opened)
        # As a stream: of a text PyYAML quotes the place, and here that may be somebody's token.
        content = yaml.load(io.BytesIO(text), yaml_text.Loader)  # noqa: S506 - it is a SafeLoader
    except OSError as exc:
        raise StartError(f"{file}: cannot be read ({exc.strerror}); name a readable file") from None
    except yaml_text.SizeError as exc:
        raise StartError(f"{file}: {exc}; take out what you do not use") from None
    except yaml_text.AliasError:
        raise StartError(f"{file}: {yaml_text.NO_ALIASES}") from None
    except yaml_text.MISTAKES as exc:
        raise StartError(f"{file}: is no YAML: {values.one_line(exc)}") from None
    if not isinstance(content, dict):
        raise StartError(f"{file}: is no kubeconfig; write one by 'kubectl config view --raw'")
    return content


def _entries(contents: Mapping[Path, _Content], kind: str) -> list[_Content]:
    found: dict[str, _Content] = {}
    for file, content in contents.items():
        for name, entry in _named(file, kind, content.get(kind) or []):
            found.setdefault(name, _located(entry, kind.removesuffix("s"), file.absolute().parent))
    return [*found.values()]


def _named(file: Path, kind: str, entries: Any) -> Iterator[tuple[str, _Content]]:
    if not isinstance(entries, list):
        raise StartError(f"{file}: {kind}: is no list; begin each entry with '- name:'")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("name") is None:
            raise StartError(f"{file}: {kind}[{index}]: has no name; give it one")
        yield str(entry["name"]), entry


def _located(entry: _Content, key: str, folder: Path) -> _Content:
    """Make an entry's paths absolute, as kubectl has them: by the folder of its file."""
    inner = entry.get(key)
    if not isinstance(inner, dict):
        return entry
    found: _Content = {
        name: str(folder / path)
        for name in _PATHS
        if isinstance(path := inner.get(name), str) and path
    }
    program = inner.get("exec")
    if isinstance(program, dict) and os.sep in str(command := program.get("command")):
        found["exec"] = {**program, "command": str(folder / str(command))}
    return {**entry, key: {**inner, **found}}
