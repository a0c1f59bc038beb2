"""Safe parsing of untrusted YAML: a few lines cannot cost gigabytes or minutes. Pure."""

import itertools
from typing import IO, Any

import yaml
from yaml.constructor import ConstructorError

SIZE_LIMIT = 1 << 20
"""Maximum bytes of a file: the limit of a ConfigMap."""

MISTAKES = (
    *(yaml.YAMLError, RecursionError, ValueError, TypeError, LookupError, AttributeError),
    ArithmeticError,
)
"""Parsing errors: PyYAML's constructors raise any of these if a value does not fit its tag."""


NO_ALIASES = "aliases are not supported; write the value out"


EXPANDED_LIMIT = 4 << 20
"""Maximum characters of a document with its aliases expanded."""
DEPTH_LIMIT = 100
"""Maximum levels of such a document: aliases of aliases nest without indentation."""
EXPANSION = f"the aliases expand to more than {EXPANDED_LIMIT >> 20} MiB or {DEPTH_LIMIT} levels"


class AliasError(yaml.MarkedYAMLError):
    """The text contains an alias that is not supported, or that expands too far."""


class SizeError(Exception):
    """A text is too large."""


class Loader(yaml.SafeLoader):
    """Rejects aliases, and reads base-60 numbers (`1:30`) and times as text, as kubectl does.

    A few lines of aliases can expand to gigabytes; base-60 numbers take quadratic time.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node. Raises AliasError for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise AliasError(problem=NO_ALIASES, problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def number(self, node: yaml.ScalarNode) -> Any:
        """Parse a number, or return the text of a base-60 number."""
        text = self.construct_scalar(node)
        if ":" in text:
            return text
        if node.tag.endswith(":float"):
            return self.construct_yaml_float(node)
        number = self.construct_yaml_int(node)
        if number.bit_length() > 64:
            raise ConstructorError(None, None, "the number is too large", node.start_mark)
        return number

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        """Return the text of a scalar. Raises ConstructorError for half a surrogate pair."""
        text = super().construct_scalar(node)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConstructorError(
                None, None, "an escape is half of a surrogate pair", node.start_mark
            ) from None
        return text


class ManifestLoader(Loader):
    """Accepts aliases, as kubectl does, up to a limit on their expansion."""

    _has_aliases = False

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node, or return the node that an alias refers to."""
        self._has_aliases |= bool(self.check_event(yaml.AliasEvent))
        return yaml.SafeLoader.compose_node(self, parent, index)

    def compose_document(self) -> yaml.Node | None:
        """Compose a document. Raises AliasError if its aliases expand too far or endlessly."""
        root = super().compose_document()
        if root is not None and self._has_aliases:
            _measure(root, {})
        return root

    def construct_document(self, node: yaml.Node) -> Any:
        """Construct a document with each alias expanded into a separate copy."""
        document = super().construct_document(node)
        return _written_out(document) if self._has_aliases else document


def _written_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written_out(child) for key, child in value.items()}
    return [_written_out(child) for child in value] if isinstance(value, list) else value


def _measure(node: yaml.Node, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the characters and the depth of a node with its aliases expanded."""
    if id(node) in sizes:
        size, depth = sizes[id(node)]
        if not size:
            raise AliasError(problem="an alias contains itself", problem_mark=node.start_mark)
        return size, depth
    sizes[id(node)] = 0, 0
    size, depth = 1, 1
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value)
    else:
        children = (
            node.value if isinstance(node, yaml.SequenceNode) else itertools.chain(*node.value)
        )
        for child in children:
            child_size, child_depth = _measure(child, sizes)
            size, depth = size + child_size, max(depth, child_depth + 1)
    if size > EXPANDED_LIMIT or depth > DEPTH_LIMIT:
        raise AliasError(problem=EXPANSION, problem_mark=node.start_mark)
    sizes[id(node)] = size, depth
    return size, depth


for _tag in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.number)
Loader.yaml_implicit_resolvers = {
    initial: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:timestamp"]
    for initial, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(file: IO[bytes], limit: int = SIZE_LIMIT) -> bytes:
    """Read a whole file. Raises SizeError if it has more than `limit` bytes."""
    text = file.read(limit + 1)
    if len(text) > limit:
        raise SizeError(f"is larger than {limit >> 20} MiB")
    return text
