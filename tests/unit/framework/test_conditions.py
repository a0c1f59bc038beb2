from holdfast.webhook.framework import conditions
from holdfast.webhook.framework.plugin import Plugin
from holdfast.webhook.model.annotations import DELAY_KEYS, JITTER, NOT_BEFORE
from holdfast.webhook.plugins.delay import Delay
from holdfast.webhook.plugins.delay_origin import DELAY_FROM
from tests.support.builders import make_delay, make_profiles
from tests.support.scripted import Holding, Scripted, profiles_of

EMPTY = "profiles: [{plugins: {disabled: [{name: '*'}]}}]"
DELAY: dict[str, type[Plugin]] = {"delay": Delay}


def test_create_condition_matches_plugins_and_holdfast_prefix() -> None:
    expected = (
        f"({make_delay().match('object')}) || "
        "(has(object.spec.schedulingGates) && (object.spec.schedulingGates.size() > 100 || "
        "object.spec.schedulingGates.exists(one, one.name.startsWith('holdfast.dev/')))) || "
        "(has(object.metadata.finalizers) && (object.metadata.finalizers.size() > 100 || "
        "object.metadata.finalizers.exists(one, one.startsWith('holdfast.dev/'))))"
    )

    assert expected == conditions.create_condition(make_profiles(known=DELAY))


def test_create_condition_has_no_duplicates() -> None:
    profiles = make_profiles("profiles: [{schedulerName: a}, {schedulerName: b}]")

    assert conditions.create_condition(make_profiles()) == conditions.create_condition(profiles)


def test_validate_condition_excludes_pods_that_plugins_skip() -> None:
    delay = make_delay()
    expected = (
        f"(({delay.match('object')}) && (!({delay.skip_match('object')}) || "
        "has(object.metadata.annotations) && "
        "('holdfast.dev/allowed' in object.metadata.annotations))) || "
        "(has(object.spec.schedulingGates) && (object.spec.schedulingGates.size() > 100 || "
        "object.spec.schedulingGates.exists("
        "one, one.name.startsWith('holdfast.dev/') && !(one.name in ['holdfast.dev/delay'])))) || "
        "(has(object.metadata.finalizers) && (object.metadata.finalizers.size() > 100 || "
        "object.metadata.finalizers.exists(one, one.startsWith('holdfast.dev/'))))"
    )

    assert expected == conditions.validate_condition(make_profiles(known=DELAY))


def test_only_plugins_with_skip_match_and_their_gates_are_skipped() -> None:
    profiles = profiles_of(Holding())
    both_condition = conditions.validate_condition(profiles_of(make_delay(), Holding()))

    assert conditions.create_condition(profiles) == conditions.validate_condition(profiles)
    assert "!(one.name in ['holdfast.dev/delay'])" in both_condition


def test_templates_without_plugins_never_match() -> None:
    assert conditions.create_condition(make_profiles(EMPTY), "object.spec.template") == "false"
    assert conditions.update_condition(make_profiles(EMPTY), "object.spec.template") == "false"


def test_update_condition_compares_each_key_with_its_old_value() -> None:
    expected = " || ".join(
        f"object.?spec.?template.?metadata.?annotations[?'{key}'] != "
        f"oldObject.?spec.?template.?metadata.?annotations[?'{key}']"
        for key in (*DELAY_KEYS, NOT_BEFORE, JITTER, DELAY_FROM)
    )

    assert expected == conditions.update_condition(
        make_profiles(known=DELAY), "object.spec.template"
    )


class Validating(Scripted):
    validates_templates = True


def test_any_template_change_matches_if_a_plugin_validates_templates() -> None:
    template = "object.spec.template"
    on_create = "request.operation == 'CREATE'"
    key = (
        "object.?spec.?template.?metadata.?annotations[?'scripted'] != "
        "oldObject.?spec.?template.?metadata.?annotations[?'scripted']"
    )
    change = f"{on_create} || object.?spec.?template != oldObject.?spec.?template"
    match = Scripted().match(template)

    assert conditions.template_condition(profiles_of(Validating()), template) == (
        f"({on_create} ? (false) : ({key})) || ({change}) && (({match}))"
    )
    assert conditions.template_condition(profiles_of(Scripted()), template) == (
        f"({on_create} ? (({match})) : ({key})) || ({change}) && (false)"
    )


def test_changed_template_list_matches_if_any_template_matches() -> None:
    path = "spec.replicatedJobs[].template.spec.template"
    assert conditions.template_condition(profiles_of(Scripted()), f"object.{path}") == (
        "(request.operation == 'CREATE' || "
        "object.?spec.?replicatedJobs != oldObject.?spec.?replicatedJobs) && "
        "(object.?spec.?replicatedJobs.orValue([]).size() > 100 || "
        "object.?spec.?replicatedJobs.orValue([])"
        f".exists(each, ({Scripted().match('each.template.spec.template')})))"
    )


def test_changed_template_pair_matches_if_either_matches() -> None:
    pods = [f"object.spec.group.{role}Template" for role in ("worker", "leader")]
    assert conditions.template_condition(profiles_of(Scripted()), *pods) == (
        "(request.operation == 'CREATE' || object.?spec.?group != oldObject.?spec.?group) && "
        "[{'template': object.?spec.?group.?workerTemplate.orValue({})}, "
        "{'template': object.?spec.?group.?leaderTemplate.orValue({})}]"
        f".exists(each, ({Scripted().match('each.template')}))"
    )


def test_validating_templates_does_not_change_the_pod_condition() -> None:
    validating, other = profiles_of(Validating()), profiles_of(Scripted())

    assert conditions.update_condition(validating) == conditions.update_condition(other)


def test_pod_update_condition_matches_added_holdfast_finalizer() -> None:
    assert conditions.update_condition(make_profiles(EMPTY)) == (
        "(object.metadata.?finalizers.orValue([]).size() > 100 || "
        "object.metadata.?finalizers.orValue([]).exists(one, one.startsWith('holdfast.dev/') && "
        "!(one in oldObject.metadata.?finalizers.orValue([]))))"
    )
