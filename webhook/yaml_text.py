"""YAML that somebody else wrote: without what lets a few lines cost gigabytes, or minutes. Pure."""

from __future__ import annotations

from typing import IO, Any

import yaml

SIZE_LIMIT = 1 << 20
"""Bytes of a text that a person writes; a ConfigMap holds no more."""

MISTAKES = (
    *(yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError),
    ArithmeticError,
)
"""What reading may raise: PyYAML's own constructors raise whatever comes when a value does not fit
its explicit tag."""


NO_ALIASES = "aliases are not supported; write the value out"


_FASTEST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class AliasError(yaml.MarkedYAMLError):
    """There is an alias."""


class SizeError(Exception):
    """A text is larger than it may be."""


class Loader(yaml.SafeLoader):
    """YAML without aliases, and where a number of base 60 (`1:30`) is text, as kubectl has it.

    A few lines of aliases can stand for gigabytes; numbers of base 60 cost time by the square of
    their length.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node. Raises AliasError where it is one."""
        if self.check_event(yaml.AliasEvent):
            raise AliasError(problem=NO_ALIASES, problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def number(self, node: yaml.ScalarNode) -> Any:
        """Make a number of a node, or its text where that is of base 60."""
        text = str(self.construct_scalar(node))
        if ":" in text:
            return text
        is_float = node.tag.endswith(":float")
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)


for _tag in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.number)


def read(file: IO[bytes], limit: int = SIZE_LIMIT) -> bytes:
    """Read a text to its end. Raises SizeError where that has not come after `limit` bytes."""
    text = file.read(limit + 1)
    if len(text) > limit:
        raise SizeError(f"is larger than {limit >> 20} MiB")
    return text


def refuse_aliases(text: bytes) -> None:
    """Refuse a text with aliases, ahead of a loader that would follow them.

    Raises AliasError, or another of MISTAKES where the text is no YAML.
    """
    if b"&" in text and b"*" in text:
        for event in yaml.parse(text, Loader=_FASTEST):
            if isinstance(event, yaml.AliasEvent):
                raise AliasError(problem=NO_ALIASES)
