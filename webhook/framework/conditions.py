"""Match conditions of the webhooks, combined from the plugins' CEL expressions. Pure.

Tests check that they agree with the plugins' Python predicates.
"""

from collections.abc import Iterable, Sequence

from holdfast.webhook.framework.cel import (
    POD,
    has_annotation,
    may_have,
    optional,
    string,
    strings,
)
from holdfast.webhook.framework.profiles import Profiles
from holdfast.webhook.model.annotations import ALLOWED_ANNOTATION, OWN_PREFIX
from holdfast.webhook.model.workloads import RESOURCES

_CREATED = "request.operation == 'CREATE'"


def create_condition(profiles: Profiles, pod: str = POD) -> str:
    """Return the expression that is true for every new pod to review.

    For a template, it omits plugins that validate templates: see `template_condition`.
    """
    expressions = [
        plugin.match(pod)
        for plugin in profiles.plugins
        if pod == POD or not plugin.validates_templates
    ]
    expressions += [
        f"{_of_kind(kind)} && {has_annotation(keys, POD)}"
        for kind, keys in _workload_keys(profiles, pod)
    ]
    if pod == POD:
        expressions += [_own(f"{pod}.spec.schedulingGates", "one.name")]
        expressions += [_own(f"{pod}.metadata.finalizers", "one")]
    return any_of(expressions)


def validate_condition(profiles: Profiles) -> str:
    """Return the expression that is true for every new pod that a call must validate.

    It excludes a pod if every plugin that it concerns can skip the validation. A pod with
    ALLOWED_ANNOTATION is not excluded: only the call detects that another webhook added it.
    """
    expressions: list[str] = []
    gates: dict[str, None] = {}
    is_allowed = has_annotation((ALLOWED_ANNOTATION,), POD)
    for plugin in profiles.plugins:
        match, skip_match = plugin.match(POD), plugin.skip_match(POD)
        is_checked = f"(!({skip_match}) || {is_allowed})"
        expressions.append(match if skip_match == "false" else f"({match}) && {is_checked}")
        if skip_match != "false" and plugin.gate:
            gates[plugin.gate] = None
    expressions += [_own(f"{POD}.spec.schedulingGates", "one.name", known=gates)]
    expressions += [_own(f"{POD}.metadata.finalizers", "one")]
    return any_of(expressions)


def restore_condition(profiles: Profiles) -> str:
    """Return the expression that is true for every VM update that may drop annotations."""
    return any_of(plugin.restore_match() for plugin in profiles.plugins)


def update_condition(profiles: Profiles, pod: str = POD) -> str:
    """Return the expression that is true for every update to review.

    It matches changes of the plugins' keys, and added finalizers of Holdfast. Scaling and status
    changes never match.
    """
    keys = dict.fromkeys(key for plugin in profiles.plugins for key in plugin.keys)
    tests = [_changed(pod, key) for key in keys]
    for kind, own_keys in _workload_keys(profiles, pod):
        is_changed = " || ".join(_changed(POD, key) for key in own_keys)
        tests.append(f"{_of_kind(kind)} && ({is_changed})")
    if pod == POD:
        old_finalizers = f"{_old(pod)}.metadata.?finalizers.orValue([])"
        is_added = f"one.startsWith('{OWN_PREFIX}') && !(one in {old_finalizers})"
        tests.append(may_have(f"{pod}.metadata.?finalizers.orValue([])", is_added))
    return " || ".join(tests) or "false"


def template_condition(profiles: Profiles, *pods: str) -> str:
    """Return the expression that is true for every template to review, at CREATE and UPDATE.

    Plugins that validate templates see every change of a template. Their expressions appear once,
    because the API server limits the length of an expression.
    """
    if pods[1:] or "[]" in pods[0]:
        return _any_template_condition(profiles, pods)
    (pod,) = pods
    matches = [plugin.match(pod) for plugin in profiles.plugins if plugin.validates_templates]
    is_changed = f"{optional(pod)} != {optional(_old(pod))}"
    key_test = by_operation(create_condition(profiles, pod), update_condition(profiles, pod))
    return f"({key_test}) || ({_CREATED} || {is_changed}) && ({any_of(matches)})"


def _any_template_condition(profiles: Profiles, pods: Sequence[str]) -> str:
    """Return `template_condition` for several templates, or for a list of templates (`[]`).

    One of several templates may be absent. Any change of the field that contains them matches.
    """
    field, is_list, item_path = pods[0].partition("[]")
    if is_list:
        templates = f"{optional(field)}.orValue([])"
    else:
        field, item_path = field.rpartition(".")[0], ".template"
        entries = (f"{{'template': {optional(pod)}.orValue({{}})}}" for pod in pods)
        templates = f"[{', '.join(entries)}]"
    is_changed = f"{optional(field)} != {optional(_old(field))}"
    match = any_of(plugin.match(f"each{item_path}") for plugin in profiles.plugins)
    any_match = (
        may_have(templates, match, "each") if is_list else f"{templates}.exists(each, {match})"
    )
    return f"({_CREATED} || {is_changed}) && {any_match}"


def by_operation(on_create: str, on_update: str) -> str:
    """Return the expression that evaluates `on_create` at CREATE, and `on_update` at UPDATE."""
    return f"{_CREATED} ? ({on_create}) : ({on_update})"


def _changed(pod: str, key: str) -> str:
    return f"{_annotation(pod, key)} != {_annotation(_old(pod), key)}"


def _annotation(pod: str, key: str) -> str:
    return f"{optional(f'{pod}.metadata.annotations')}[?{string(key)}]"


def _old(pod: str) -> str:
    return "oldObject" + pod.removeprefix(POD)


def any_of(expressions: Iterable[str]) -> str:
    """Return the expression that is true if one of these is; drops duplicates and "false"."""
    tests = [expression for expression in dict.fromkeys(expressions) if expression != "false"]
    return " || ".join(f"({test})" for test in tests) or "false"


def _own(path: str, name: str, known: Iterable[str] = ()) -> str:
    """Return an expression that is true if the list has an unknown name with our prefix."""
    test = f"{name}.startsWith('{OWN_PREFIX}')"
    if known_names := list(known):
        test += f" && !({name} in {strings(known_names)})"
    return f"has({path}) && {may_have(path, test)}"


def _of_kind(kind: str) -> str:
    return f"request.kind.kind == {string(kind)}"


def _workload_keys(profiles: Profiles, pod: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the plugins' annotations of workloads whose template has this path, by kind."""
    kinds = {resource.kind for resource in RESOURCES if f"{POD}.{resource.path}" == pod}
    keys_by_kind: dict[str, dict[str, None]] = {}
    for plugin in profiles.plugins:
        for kind, keys in plugin.workload_keys.items():
            if kind in kinds:
                keys_by_kind.setdefault(kind, {}).update(dict.fromkeys(keys))
    return [(kind, tuple(keys)) for kind, keys in keys_by_kind.items()]
