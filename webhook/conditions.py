"""Who is sent to the webhooks: CEL expressions, made from what the plugins say. Pure.

A condition has `has()` at each level, since an expression that fails counts as a failed call. It
is tested to agree with the plugins' own predicates in Python.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook import holds
from webhook.framework import Holder, Marking, Plugin, Settling, judges_templates
from webhook.pipeline import Pipeline
from webhook.workloads import RESOURCES

POD = "object"
"""The pod under review, in CEL."""


def asks(pipeline: Pipeline, pod: str = POD) -> str:
    """Make the expression that is true for every pod, or pod template, that has to be seen."""
    expressions = [plugin.match(pod) for plugin in _plugins(pipeline)]
    expressions += [
        f"{_of_kind(kind)} && {has_annotation(keys, POD)}"
        for kind, keys in _workload_keys(pipeline, pod)
    ]
    if pod == POD:
        expressions += [_own(f"{pod}.spec.schedulingGates", "one.name")]
        expressions += [_own(f"{pod}.metadata.finalizers", "one")]
    return _any(expressions)


def unsettled(pipeline: Pipeline) -> str:
    """Make the expression that is true for every new pod that has to be checked by a call.

    Spared are pods of which each plugin that they concern says that the API server can see for
    itself that nothing is missing.
    """
    plugins = _plugins(pipeline)
    expressions = [_unsettled(plugin) for plugin in plugins]
    gates = [
        plugin.gate
        for plugin in plugins
        if isinstance(plugin, Settling) and isinstance(plugin, Holder)
    ]
    expressions += [_own(f"{POD}.spec.schedulingGates", "one.name", known=dict.fromkeys(gates))]
    expressions += [_own(f"{POD}.metadata.finalizers", "one")]
    return _any(expressions)


def changes(pipeline: Pipeline, pod: str = POD) -> str:
    """Make the expression that is true for an update that has to be seen.

    Of a pod that is one of our keys. Of a template it is also any change of it, where it concerns
    a plugin that judges whole templates; scaling, or a change of a status, is never one.
    """
    keys = dict.fromkeys(key for plugin in _plugins(pipeline) for key in plugin.keys)
    tests = [_changed(pod, key) for key in keys]
    for kind, own_keys in _workload_keys(pipeline, pod):
        changed = " || ".join(_changed(POD, key) for key in own_keys)
        tests.append(f"{_of_kind(kind)} && ({changed})")
    if pod != POD:
        judged = [plugin.match(pod) for plugin in _plugins(pipeline) if judges_templates(plugin)]
        changed = f"{_optional(pod)} != {_optional(_old(pod))}"
        tests += [f"{changed} && ({expression})" for expression in dict.fromkeys(judged)]
    else:
        before = f"{_old(pod)}.metadata.?finalizers.orValue([])"
        tests.append(
            f"{pod}.metadata.?finalizers.orValue([])"
            f".exists(one, one.startsWith('{holds.OWN_PREFIX}') && !(one in {before}))"
        )
    return " || ".join(tests) or "false"


def has_annotation(keys: Iterable[str], pod: str) -> str:
    """Make an expression: the pod has at least one of these annotations."""
    annotations = f"{pod}.metadata.annotations"
    tests = " || ".join(f"{string(key)} in {annotations}" for key in keys)
    return f"{_present(annotations)} && ({tests})"


def has_gate(name: str, pod: str) -> str:
    """Make an expression: the pod has this scheduling gate."""
    gates = f"{pod}.spec.schedulingGates"
    return f"{_present(gates)} && {gates}.exists(one, one.name == {string(name)})"


def has_entry(field: str, key: str, pod: str, values: Iterable[str] | None = None) -> str:
    """Make an expression: the pod's `annotations` or `labels` have this key, with such a value.

    None as the values stands for any value.
    """
    entries = f"{pod}.metadata.{field}"
    test = f"{_present(entries)} && {string(key)} in {entries}"
    if values is None:
        return test
    return f"{test} && {entries}[{string(key)}] in {strings(values)}"


def has_controller(group: str, kind: str, pod: str) -> str:
    """Make an expression: the pod's controller is of this kind, of whatever version."""
    owners = f"{pod}.metadata.ownerReferences"
    return (
        f"{_present(owners)} && {owners}.exists(owner, has(owner.controller) && owner.controller"
        f" && owner.kind == {string(kind)}"
        f" && owner.apiVersion.startsWith({string(group + '/')}))"
    )


def strings(texts: Iterable[str]) -> str:
    """Write texts as a CEL list."""
    return f"[{', '.join(map(string, texts))}]"


def string(text: str) -> str:
    """Write a text as a CEL string literal."""
    escaped = "".join(
        f"\\{char}" if char in "\\'" else char if char.isprintable() else f"\\U{ord(char):08x}"
        for char in text
    )
    return f"'{escaped}'"


def _present(path: str) -> str:
    """Test a path level by level; `object`, and its `metadata` and `spec`, are always there."""
    steps = path.split(".")
    return " && ".join(f"has({'.'.join(steps[:end])})" for end in range(3, len(steps) + 1))


def _changed(pod: str, key: str) -> str:
    return f"{_annotation(pod, key)} != {_annotation(_old(pod), key)}"


def _annotation(pod: str, key: str) -> str:
    return f"{_optional(f'{pod}.metadata.annotations')}[?{string(key)}]"


def _optional(path: str) -> str:
    """Read a path of which any step may be missing."""
    return path.replace(".", ".?")


def _old(pod: str) -> str:
    return "oldObject" + pod.removeprefix(POD)


def _any(expressions: Iterable[str]) -> str:
    tests = [one for one in dict.fromkeys(expressions) if one != "false"]
    return " || ".join(f"({test})" for test in tests) or "false"


def _unsettled(plugin: Plugin) -> str:
    match = plugin.match(POD)
    return f"({match}) && !({plugin.settled(POD)})" if isinstance(plugin, Settling) else match


def _own(path: str, name: str, known: Iterable[str] = ()) -> str:
    """Make an expression: there is a name of ours at this path, and it is none of the known."""
    test = f"{name}.startsWith('{holds.OWN_PREFIX}')"
    if listed := list(known):
        test += f" && !({name} in {strings(listed)})"
    return f"has({path}) && {path}.exists(one, {test})"


def _of_kind(kind: str) -> str:
    return f"request.kind.kind == {string(kind)}"


def _workload_keys(pipeline: Pipeline, pod: str) -> list[tuple[str, tuple[str, ...]]]:
    """Gather the annotations of workloads themselves whose template is at this path, by kind."""
    kinds = {resource.kind for resource in RESOURCES if f"{POD}.{resource.path}" == pod}
    found: dict[str, dict[str, None]] = {}
    for plugin in _plugins(pipeline):
        for kind, keys in plugin.workload_keys.items() if isinstance(plugin, Marking) else ():
            if kind in kinds:
                found.setdefault(kind, {}).update(dict.fromkeys(keys))
    return [(kind, tuple(keys)) for kind, keys in found.items()]


def _plugins(pipeline: Pipeline) -> list[Plugin]:
    return [plugin for profile in pipeline.profiles.values() for plugin in profile.plugins]
