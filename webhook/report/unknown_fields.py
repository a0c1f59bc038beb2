"""Holdfast annotations outside metadata, which the API server rejects or drops. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import OWN_PREFIX


class _Path(NamedTuple):
    """The path of a part, made only when needed: a manifest may have a million parts."""

    parent: _Path | None
    step: str

    def __str__(self) -> str:
        steps = []
        path: _Path | None = self
        while path is not None:
            steps.append(path.step)
            path = path.parent
        return "".join(reversed(steps)).removeprefix(".")


def warnings(part: Any, templates: Sequence[str], path: _Path | None = None) -> Iterator[str]:
    """Yield a warning for each one in an object of a known kind with templates at these paths."""
    in_metadata = path is not None and path.step == ".metadata"
    for key, value in part.items() if isinstance(part, dict) else ():
        field = _Path(path, f".{key}")
        if key == "annotations" and isinstance(value, dict) and not in_metadata:
            yield from _misplaced(value, templates, field)
        yield from warnings(value, templates, field)
    for index, value in enumerate(part if isinstance(part, list) else ()):
        yield from warnings(value, templates, _Path(path, f"[{index}]"))


def _misplaced(annotations: dict[Any, Any], templates: Sequence[str], path: _Path) -> Iterator[str]:
    own = [name for name in annotations if str(name).startswith(OWN_PREFIX)]
    if not own:
        return
    field = str(path)
    enclosing = [template for template in templates if field.startswith(f"{template}.")]
    target = f"{(enclosing or templates)[0]}.metadata.annotations".removeprefix(".")
    for name in own:
        yield f"{field} is not a field: move {messages.quote(name)} to {target}"
