"""Match conditions, arguments and startup."""

import logging
from typing import Any

import pytest

from holdfast.webhook.errors import ClusterError, ConfigurationError
from holdfast.webhook.model import kubevirt
from holdfast.webhook.model.objects import Metadata, Pod
from holdfast.webhook.plugins.sticky import Sticky
from holdfast.webhook.plugins.sticky_policy import StickyArgs
from tests.support.builders import Document, make_pipeline, make_pod, read_review
from tests.support.fakes import FakeLookup, status_error
from tests.support.vm_builders import VMI_UID, make_launcher, owner_of
from tests.unit.plugins.sticky_vms import FORGED_OWNERS, sticky


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod(), False, id="a pod"),
        pytest.param(make_pod({"delay": "15"}), False, id="a pod with a delay"),
        pytest.param(make_launcher(), True, id="a launcher pod"),
        *(
            pytest.param(make_launcher(owners=owners), False, id=name)
            for name, owners in FORGED_OWNERS.items()
        ),
    ],
)
def test_only_pods_of_vmis_may_block(pod: Document, expected: bool) -> None:
    assert make_pipeline().may_block(read_review(pod)) is expected


def test_match_covers_pods_in_the_configured_namespaces_but_not_templates() -> None:
    any_plugin, plugin = Sticky(StickyArgs()), Sticky(StickyArgs(namespaces=("a", "b")))
    condition = any_plugin.match("object")
    assert condition == (
        "has(object.metadata.ownerReferences) && (object.metadata.ownerReferences.size() > 100 || "
        "object.metadata.ownerReferences.exists(one, has(one.controller) && one.controller && "
        "one.kind == 'VirtualMachineInstance' && one.apiVersion.startsWith('kubevirt.io/')))"
    )
    assert plugin.match("object") == f"{condition} && request.namespace in ['a', 'b']"
    assert any_plugin.match("object.spec.template") == "false"
    assert plugin.match("object.spec.template") == "false"
    for namespace, expected in (("a", True), ("b", True), ("c", False), ("", True)):
        assert plugin.concerns(Pod.of(make_launcher(namespace=namespace))) is expected


def test_controller_is_found_at_any_position_among_the_owners() -> None:
    other_owners = [owner_of("Deployment", "d", "u", api_version="apps/v1", controller=False)]
    launcher = Pod.of(make_launcher(owners=[*other_owners, owner_of(kubevirt.VMI, "vm", VMI_UID)]))
    controller = kubevirt.controller_of(launcher.metadata, kubevirt.VMI)
    assert controller is not None
    assert controller.uid == VMI_UID
    assert kubevirt.controller_of(Metadata(), kubevirt.VMI) is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param(
            {"node_annotation": "a b"},
            (
                'nodeAnnotation: "a b" is not a valid annotation key: use one like '
                "example.com/sticky-node"
            ),
            id="invalid key",
        ),
        pytest.param(
            {"node_annotation": "holdfast.dev/sticky"},
            "nodeAnnotation: 'holdfast.dev/sticky' is reserved: use another key",
            id="reserved key",
        ),
        pytest.param(
            {"namespaces": ("a", "B")},
            'namespaces[1]: "B" is not a valid namespace: use a name like default',
            id="invalid namespace",
        ),
        pytest.param(
            {"account": ""},
            "account: must not be empty: use auto, or name the account of virt-controller",
            id="empty account",
        ),
    ],
)
def test_invalid_arguments(args: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Sticky(StickyArgs(**args))
    assert str(caught.value) == expected


def test_start_logs_missing_kubevirt_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.plugins")
    lookup = FakeLookup()
    sticky(lookup).start()
    assert caplog.messages == []

    lookup.failures.append(status_error(404))
    sticky(lookup).start()
    assert caplog.messages == ["plugin sticky: KubeVirt is not installed; idle until it is"]
    assert lookup.asked == ["/apis/kubevirt.io/v1"] * 2

    lookup.failures.append(status_error(503))
    with pytest.raises(ClusterError):
        sticky(lookup).start()
