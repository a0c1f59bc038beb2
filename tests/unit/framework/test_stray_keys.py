"""A misplaced or unknown annotation gets a warning that says where it belongs."""

from typing import Any

import pytest

from docs.generate import ROOT
from holdfast.webhook import plugins
from holdfast.webhook.framework.stray_keys import StrayKeys
from holdfast.webhook.model.annotations import OWN_KEYS, OWN_PREFIX
from tests.support.builders import (
    CREATED_MS,
    DEPLOYMENT,
    VM,
    held,
    make_pipeline,
    make_pod,
    make_profiles,
    make_workload,
    read_review,
)
from tests.support.vm_builders import make_vm


def warnings(document: Any, **request: Any) -> list[str]:
    verdict = make_pipeline().validate(read_review(document, **request), now_ms=CREATED_MS)
    return list(verdict.warnings)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        pytest.param("holdfast.dev/delai", "did you mean holdfast.dev/delay?", id="mistyped"),
        pytest.param("holdfast.dev/qqq", "remove or correct it", id="no similar key"),
        pytest.param("holdfast.io/delay", "did you mean holdfast.dev/delay?", id="other domain"),
        pytest.param("holdfast/pace", "did you mean holdfast.dev/pace?", id="no domain"),
    ],
)
def test_unknown_key(key: str, advice: str) -> None:
    expected = f'holdfast: unknown annotation "{key}" has no effect: {advice}'

    assert [expected] == warnings(make_pod({key: "1"}))
    assert [f"holdfast: spec.template.metadata: {expected.removeprefix('holdfast: ')}"] == warnings(
        make_workload({}, {key: "1"}), kind=DEPLOYMENT
    )


@pytest.mark.parametrize("key", ["holdfast.dev/delay", "delay", "holdfast.dev/window"])
def test_key_on_the_workload_itself(key: str) -> None:
    (warning,) = warnings(make_workload({key: "15"}), kind=DEPLOYMENT)
    assert warning == (
        f"holdfast: metadata: annotation {key} has no effect here: move it to "
        "spec.template.metadata.annotations"
    )


CRON = {"group": "batch", "version": "v1", "kind": "CronJob"}
JOB_SET = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"}
POOL = {"group": "pool.kubevirt.io", "version": "v1beta1", "kind": "VirtualMachinePool"}
DELAYED = {"metadata": {"annotations": {"holdfast.dev/delay": "15"}}}


@pytest.mark.parametrize(
    ("kind", "spec", "outer"),
    [
        (CRON, {"jobTemplate": DELAYED}, "spec.jobTemplate"),
        (JOB_SET, {"replicatedJobs": [{"template": DELAYED}]}, "spec.replicatedJobs[0].template"),
        (POOL, {"virtualMachineTemplate": DELAYED}, "spec.virtualMachineTemplate"),
    ],
    ids=["CronJob", "JobSet", "VirtualMachinePool"],
)
def test_key_on_the_outer_template(kind: Any, spec: Any, outer: str) -> None:
    (warning,) = warnings({"metadata": {"name": "it"}, "spec": spec}, kind=kind)
    assert warning == (
        f"holdfast: {outer}.metadata: annotation holdfast.dev/delay has no effect here: move it "
        f"to {outer}.spec.template.metadata.annotations"
    )


def test_vm_key_in_the_vm_template() -> None:
    vm = make_vm({"holdfast.dev/delay": "15"})
    vm["spec"]["template"]["metadata"] = {"annotations": {"holdfast.dev/sticky": "true"}}
    advice = "annotation holdfast.dev/{} has no effect here: move it to {}metadata.annotations"
    sticky, delay = ("sticky", "the VirtualMachine's "), ("delay", "spec.template.")
    assert [
        f"holdfast: spec.template.metadata: {advice.format(*sticky)}",
        f"holdfast: metadata: {advice.format(*delay)}",
    ] == warnings(vm, kind=VM)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("holdfast.dev/delay", "set annotation holdfast.dev/delay instead"),
        ("holdfast.dev/delai", "set annotation holdfast.dev/delay instead"),
        ("holdfast.dev/qqq", "remove or correct it"),
    ],
)
def test_key_as_label(key: str, advice: str) -> None:
    expected = f'label "{key}" has no effect: {advice}'
    labelled = {"metadata": {"labels": {key: "15"}}}
    web = {**labelled, "spec": {"template": labelled}}

    assert [f"holdfast: {expected}"] == warnings(make_pod({}, labels={key: "15"}))
    assert [
        f"holdfast: spec.template.metadata: {expected}",
        f"holdfast: metadata: {expected}",
    ] == warnings(web, kind=DEPLOYMENT)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(make_pod({"example.com/delai": "15"}), id="a key of another domain"),
        pytest.param(make_pod({"holdfast.example.com/x": "15"}), id="a similar domain"),
        pytest.param(make_pod({}, labels={"holdfast-team": "a", "app": "holdfast"}), id="labels"),
        pytest.param(
            held(
                {"holdfast.dev/pace": "4"},
                labels={"holdfast.dev/pace": "a", "holdfast.dev/held": "true"},
                gates=["holdfast.dev/pace"],
            ),
            id="own labels",
        ),
        pytest.param(
            make_pod({"holdfast.dev/released": "2026-03-01T12:00:00Z"}), id="written by Holdfast"
        ),
    ],
)
def test_other_keys_get_no_warning(document: Any) -> None:
    assert warnings(document) == []


def test_vm_keys_on_a_vm_get_no_warning() -> None:
    assert warnings(make_vm({"holdfast.dev/sticky-node": "node-1"}), kind=VM) == []


def test_hold_added_to_a_running_pod() -> None:
    running, updated = make_pod(node="n1"), make_pod({"holdfast.dev/window": "Mon 9:00-10:00"})
    expected = (
        "holdfast: annotation holdfast.dev/window has no effect, because the pod was created "
        "without it: set it in the template of its workload, or create the pod again"
    )

    assert expected in warnings(updated, old=running, operation="UPDATE")
    assert warnings(held({"delay": "20"}), old=held({"delay": "15"}), operation="UPDATE") == []


def test_delay_changed_on_a_released_pod_gets_a_warning_but_a_pace_gets_none() -> None:
    mark, pace = {"holdfast.dev/released": "2026-03-01T12:00:15Z"}, "holdfast.dev/pace"

    def changed(key: str, old: str, new: str, **fields: Any) -> list[str]:
        released = make_pod({key: old, **mark}, node="n1", **fields)
        updated = make_pod({key: new, **mark}, node="n1", **fields)
        return warnings(updated, old=released, operation="UPDATE")

    (warning,) = changed("delay", "15", "9s")
    assert "annotation delay has no effect, because the pod has already been released:" in warning
    assert changed(pace, "4", "6", labels={pace: "x"}) == []


def test_number_of_warnings_is_limited() -> None:
    annotations = {f"holdfast.dev/x{number}": "" for number in range(100)}

    assert len(warnings(make_pod(annotations))) == 3


def test_all_keys_are_known_and_documented() -> None:
    page = (ROOT / "reference/annotations.md").read_text(encoding="utf-8")
    documented_keys = {key for key in OWN_KEYS if f"`{key}`" in page}
    plugin_keys = {key for plugin in make_profiles().plugins for key in plugin.keys}
    assert set(plugins.registry([])) == {plugin.name for plugin in make_profiles().plugins}

    assert documented_keys == OWN_KEYS
    assert {key for key in plugin_keys if key.startswith(OWN_PREFIX)} <= OWN_KEYS


def test_nothing_matches_without_enabled_plugins() -> None:
    stray_keys = StrayKeys(make_profiles("profiles: [{plugins: {disabled: [{name: '*'}]}}]"))

    assert stray_keys.match("object") == stray_keys.match_workload(["Deployment"]) == "false"
