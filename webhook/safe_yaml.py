"""Safe parsing of untrusted YAML, where a few lines cannot cost gigabytes or minutes. Pure."""

from typing import IO, Any

import yaml

SIZE_LIMIT = 1 << 20
"""Bytes of a file: the limit of a ConfigMap."""

MISTAKES = (
    *(yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError),
    ArithmeticError,
)
"""Errors of parsing: PyYAML's constructors raise any of these for a value that does not fit its
tag."""


NO_ALIASES = "aliases are not supported; write the value out"


class AliasError(yaml.MarkedYAMLError):
    """The text contains an alias."""


class SizeError(Exception):
    """A text is too large."""


class Loader(yaml.SafeLoader):
    """YAML without aliases, where base-60 numbers (`1:30`) and times are text, as in kubectl.

    A few lines of aliases can expand to gigabytes; base-60 numbers take quadratic time.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node. Raises AliasError for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise AliasError(problem=NO_ALIASES, problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def number(self, node: yaml.ScalarNode) -> Any:
        """Parse a number, or return the text of a base-60 number."""
        text = str(self.construct_scalar(node))
        if ":" in text:
            return text
        is_float = node.tag.endswith(":float")
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)


for _tag in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.number)
Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(file: IO[bytes], limit: int = SIZE_LIMIT) -> bytes:
    """Read a whole file. Raises SizeError if it has more than `limit` bytes."""
    text = file.read(limit + 1)
    if len(text) > limit:
        raise SizeError(f"is larger than {limit >> 20} MiB")
    return text
