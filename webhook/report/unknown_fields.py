"""Holdfast annotations outside metadata, which the API server rejects or drops. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import OWN_PREFIX


def warnings(found: Any, templates: Sequence[str], path: str = "") -> Iterator[str]:
    """Yield a warning for each one in an object of a known kind with templates at these paths."""
    for key, value in found.items() if isinstance(found, dict) else ():
        where = f"{path}.{key}".removeprefix(".")
        if key == "annotations" and isinstance(value, dict) and not path.endswith("metadata"):
            around = [one for one in templates if where.startswith(f"{one}.")]
            target = f"{(around or templates)[0]}.metadata.annotations".removeprefix(".")
            for one in value:
                if str(one).startswith(OWN_PREFIX):
                    yield f"{where} is not a field: move {messages.quote(one)} to {target}"
        yield from warnings(value, templates, where)
    for index, value in enumerate(found if isinstance(found, list) else ()):
        yield from warnings(value, templates, f"{path}[{index}]")
