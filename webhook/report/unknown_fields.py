"""Holdfast annotations outside metadata, which the API server rejects or drops. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.webhook.model import messages
from holdfast.webhook.model.annotations import OWN_PREFIX


def warnings(part: Any, templates: Sequence[str], path: str = "") -> Iterator[str]:
    """Yield a warning for each one in an object of a known kind with templates at these paths."""
    for key, value in part.items() if isinstance(part, dict) else ():
        field = f"{path}.{key}".removeprefix(".")
        if key == "annotations" and isinstance(value, dict) and not path.endswith("metadata"):
            enclosing = [template for template in templates if field.startswith(f"{template}.")]
            target = f"{(enclosing or templates)[0]}.metadata.annotations".removeprefix(".")
            for annotation in value:
                if str(annotation).startswith(OWN_PREFIX):
                    yield f"{field} is not a field: move {messages.quote(annotation)} to {target}"
        yield from warnings(value, templates, field)
    for index, value in enumerate(part if isinstance(part, list) else ()):
        yield from warnings(value, templates, f"{path}[{index}]")
