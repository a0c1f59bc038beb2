"""Find every problem of a configuration file, with its line. Pure.

Each invalid value is removed, and the document is checked again, until it is valid.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from holdfast.webhook import safe_yaml
from holdfast.webhook.config import config
from holdfast.webhook.errors import ConfigurationError
from holdfast.webhook.model import messages

MOST = 50
"""Maximum number of reported problems."""
_PATH = re.compile(r"\w+(?:\.\w+|\[\d+\])*(?=:)")
_INDEX = re.compile(r"\[\d+\]")
_FIELD = re.compile(r"(unknown|required) field [`']([^`']*)")
_RIGHT = {"apiVersion": config.API_VERSION, "kind": config.KIND}

_Steps = list[tuple[yaml.Node, str]]
"""The nodes on a path, each with the key or index that follows it."""


def find(text: bytes, source: str, build: Callable[[Any], object]) -> list[str]:
    """Return the problems of a file as `file:line: path: problem`; none if `build` accepts it.

    `build` receives the document, and raises ConfigurationError if it is invalid.
    """
    return [
        f"{source}:{line}: {problem}" if line else f"{source}: {problem}"
        for line, problem in sorted(_problems(text, source, build), key=lambda pair: pair[0])
    ]


def _problems(
    text: bytes, source: str, build: Callable[[Any], object]
) -> Iterator[tuple[int, str]]:
    remains = _Remains(text)
    line, removals = 1, 0
    while line and removals < MOST:
        removals += 1
        try:
            build(remains.document())
            line = 0
        except safe_yaml.MISTAKES as exc:
            line = 0
            yield _yaml_problem(exc)
        except ConfigurationError as exc:
            line, problem = remains.remove(str(exc).removeprefix(f"{source}: "))
            if problem:
                yield line, problem


def _yaml_problem(exc: Exception) -> tuple[int, str]:
    mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", None)
    if mark is None or not problem:
        return 0, config.INVALID_YAML + messages.one_line(exc)
    return mark.line + 1, config.INVALID_YAML + messages.shorten(messages.escape(str(problem)))


class _Remains:
    """A document, from which invalid nodes are removed."""

    def __init__(self, text: bytes) -> None:
        self._loader = config.StrictLoader(text)
        self._root: Any = None
        self._removed: set[tuple[int, str]] = set()
        self._places: dict[int, int] = {}
        """The index of each list item in the file, by the `id` of its node."""

    def document(self) -> Any:
        """Return the remaining document. Raises one of safe_yaml.MISTAKES."""
        if self._root is None:
            self._root = self._loader.get_single_node()
            self._number(self._root)
        return self._loader.construct_document(self._root) if self._root else None

    def remove(self, problem: str) -> tuple[int, str]:
        """Remove the cause of a problem; return its line, and the problem with its path.

        Line 0 means that nothing could be removed. The problem is empty if an earlier removal
        caused it.
        """
        match = _PATH.match(problem)
        path = match[0] if match else ""
        steps = self._along(re.findall(r"\w+", path))
        field = _FIELD.search(problem)
        follows = self._follows(steps, field)
        places = iter([self._places.get(id(_child(*step))) for step in steps if step[1].isdigit()])
        shown_path = _INDEX.sub(lambda index: f"[{next(places, index[0][1:-1])}]", path)
        if steps and field and field[1] == "unknown":
            steps[-1] = steps[-1][0], field[2]
        for node, step in reversed(steps):
            if line := _drop(node, step):
                self._removed |= {(id(parent), "") for parent, _ in steps} | {(id(node), step)}
                return line, "" if follows else shown_path + problem[len(path) :]
        return 0, problem

    def _follows(self, steps: _Steps, field: re.Match[str] | None) -> bool:
        """Return whether an earlier removal from the same node caused a problem."""
        if not steps or (field and field[1] == "unknown"):
            return False
        node, step = steps[-1]
        return not step and (id(node), field[2] if field else "") in self._removed

    def _number(self, node: yaml.Node | None) -> None:
        children = getattr(node, "value", None)
        for index, item in enumerate(children if isinstance(children, list) else ()):
            child = item[1] if isinstance(item, tuple) else item
            self._places[id(child)] = index
            self._number(child)

    def _along(self, path: list[str]) -> _Steps:
        steps: _Steps = []
        node = self._root
        for step in path:
            steps.append((node, step))
            node = _child(node, step)
            if node is None:
                return steps
        return [*steps, (node, "")]


def _child(node: yaml.Node, step: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        child: yaml.Node = node.value[int(step)]
        return child
    return None


def _drop(node: yaml.Node, step: str) -> int:
    """Remove a key or an item of a node; return its line, or 0 if it does not exist."""
    if isinstance(node, yaml.SequenceNode) and _child(node, step) is not None:
        return int(node.value.pop(int(step)).start_mark.line) + 1
    if not isinstance(node, yaml.MappingNode):
        return 0
    lines = [key.start_mark.line + 1 for key, _ in node.value if key.value == step]
    node.value = [pair for pair in node.value if pair[0].value != step]
    if step in _RIGHT:
        text = "tag:yaml.org,2002:str"
        node.value.append((yaml.ScalarNode(text, step), yaml.ScalarNode(text, _RIGHT[step])))
        return lines[0] if lines else 1
    return lines[0] if lines else 0
