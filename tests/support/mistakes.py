"""Documents with mistakes, for tests of parsers."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Return each container in a document with each of its keys or indexes."""
    keys = document if isinstance(document, dict) else range(len(document))
    for key in list(keys):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from places(document[key])


@st.composite
def with_mistakes(
    draw: st.DrawFn,
    right: st.SearchStrategy[Any],
    *,
    junk: Sequence[Any],
    keys: Sequence[str],
    most: int = 2,
) -> Any:
    """Replace, remove or add something in a document, `most` times or less."""
    document = copy.deepcopy(draw(right))
    for _ in range(draw(st.integers(0, most))):
        locations = list(places(document))
        if not locations:
            break
        container, key = draw(st.sampled_from(locations))
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "replace":
            container[key] = copy.deepcopy(draw(st.sampled_from(junk)))
        elif change == "remove":
            del container[key]
        elif isinstance(container, dict):
            new_key = draw(st.sampled_from(keys))
            container[new_key] = copy.deepcopy(draw(st.sampled_from(junk)))
        else:
            container.append(copy.deepcopy(container[key]))
    return document
