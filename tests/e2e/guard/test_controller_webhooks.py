"""The webhook configurations that the controller may write."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import yaml

from holdfast.webhook.framework.profiles import Selectors
from holdfast.webhook.policies.builder import InstallationNames, make_binding
from holdfast.webhook.policies.webhooks import webhooks_policy
from holdfast.webhook.registration.configurations import NOT_YET
from tests.e2e.guard.cluster import CONTROLLER, Guarded
from tests.e2e.guard.webhooks import (
    EXCLUDING_SELECTOR,
    EXISTS,
    EXPRESSIONS,
    IN,
    KINDS,
    METADATA_NAME,
    OTHER_NAME,
    OTHER_NAMESPACES,
    OTHER_SERVICE,
    REJECTED_WEBHOOKS,
    SERVICE,
    and_also,
    configuration,
    rule,
)
from tests.e2e.kubectl_user import refusal
from tests.e2e.namespace import Namespace, Object

pytestmark = pytest.mark.xdist_group("guard")

LABEL = {"app.kubernetes.io/name": "holdfast"}


def replace_as_controller(
    guarded: Guarded, ns: Namespace, manifest: Object, *webhooks: Object
) -> str:
    """Replace a configuration in a dry run, with these webhooks if any; return the rejection."""
    text = yaml.safe_dump({**manifest, "webhooks": [*webhooks]} if webhooks else manifest)
    arguments = ("replace", "--dry-run=server", "-f", "-")
    return refusal(guarded.controller(ns).kubectl, *arguments, stdin=text)


@contextmanager
def stored(ns: Namespace, kind: str, *webhooks: Object) -> Iterator[None]:
    """Store a configuration with these webhooks, as an admin, until the block ends."""
    text = yaml.safe_dump({**configuration(kind), "webhooks": [*webhooks]})
    ns.plane.kubectl("create", "-f", "-", stdin=text)
    try:
        yield
    finally:
        ns.plane.kubectl("delete", kind, "holdfast")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "what"), REJECTED_WEBHOOKS.values(), ids=REJECTED_WEBHOOKS)
def test_controller_cannot_register_other_webhooks(
    guarded: Guarded, shared: Namespace, kind: str, change: dict[str, Any], what: str
) -> None:
    controller = guarded.controller(shared)
    message = refusal(controller.create, configuration(kind, **change))
    assert f"'holdfast-controller-webhooks' denied request: {CONTROLLER} {what}" in message


@pytest.mark.parametrize("kind", KINDS)
def test_controller_may_update_only_its_webhook_configurations(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """An empty list is permitted too: a condition of `false` has the same effect."""
    controller = guarded.controller(shared)
    manifest, other_manifest = configuration(kind), configuration(kind, "others")
    (webhook,) = manifest["webhooks"]
    webhook["rules"] += [
        rule(apiGroups=["apps"], resources=["deployments", "statefulsets", "daemonsets"]),
        rule(apiGroups=["batch"], resources=["jobs", "cronjobs"]),
        rule(apiGroups=["kubevirt.io"], resources=["virtualmachines"]),
    ]
    shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(other_manifest))
    controller.create({**manifest, "webhooks": []}, dry_run=False)
    client = {"url": "https://evil.example.com/x"}
    scope = and_also(METADATA_NAME, "kube-system", "gke-managed-cim", "gmp-public")  # as GKE does
    second_webhook = {**webhook, "name": "templates.holdfast.dev", "namespaceSelector": {}}

    def replace(replacement: Object) -> str:
        return controller.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(replacement))

    replace(manifest)
    replace({**manifest, "webhooks": [{**webhook, "namespaceSelector": scope}]})
    assert OTHER_SERVICE in refusal(replace, configuration(kind, client=client))
    extended = {**manifest, "webhooks": [webhook, second_webhook]}
    assert OTHER_NAMESPACES in refusal(replace, extended)
    assert OTHER_NAME in refusal(replace, other_manifest)
    assert OTHER_NAME in refusal(controller.kubectl, "delete", kind, "others")
    assert OTHER_NAME in refusal(controller.kubectl, "delete", kind, "--all")
    assert refusal(controller.kubectl, "get", kind, "others") == ""
    shared.plane.kubectl("delete", kind, "others", "holdfast", "--ignore-not-found")


@pytest.mark.parametrize(
    "metadata",
    [
        {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone"}
            ]
        },
        {"finalizers": ["example.com/never"]},
        {"annotations": {"cert-manager.io/inject-ca-from": "evil/evil"}},
        {"labels": {"argocd.argoproj.io/instance": "evil"}},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
@pytest.mark.parametrize("kind", KINDS)
def test_controller_cannot_change_metadata_of_its_configurations(
    guarded: Guarded, shared: Namespace, kind: str, metadata: Object
) -> None:
    """An admin may: with an owner that does not exist, the garbage collector deletes them."""
    manifest, replaced = configuration(kind), partial(replace_as_controller, guarded, shared)
    changed = {**manifest, "metadata": {**manifest["metadata"], **metadata}}
    with_label = {**manifest, "metadata": {**manifest["metadata"], "labels": LABEL}}
    message = "may not change ownerReferences, finalizers, annotations or labels"
    try:
        shared.plane.kubectl("create", "-f", "-", stdin=yaml.safe_dump(manifest))
        assert message in replaced(changed)
        assert replaced(with_label) == ""  # its own
        shared.plane.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(changed))
        if "ownerReferences" in metadata:
            shared.eventually(lambda: refusal(shared.plane.kubectl, "get", kind, "holdfast"))
            return
        assert message in replaced(manifest)
        assert replaced(changed) == ""
    finally:
        patch = '{"metadata": {"finalizers": null}}'
        refusal(shared.plane.kubectl, "patch", kind, "holdfast", "--type=merge", f"-p={patch}")
        shared.plane.kubectl("delete", "--ignore-not-found", kind, "holdfast")


def added(webhook: Object, value: str) -> list[Object]:
    """Return Holdfast's webhook with an admin's additions of every kind, and the admin's own."""
    condition = {"name": "mine", "expression": f"'{value}' != ''"}
    additions = {
        "matchConditions": [NOT_YET, condition],
        "objectSelector": {
            "matchLabels": {"nobody": value},
            "matchExpressions": [{"key": value, "operator": "Exists"}],
        },
        "namespaceSelector": {**and_also("team", value), "matchLabels": {"nobody": "a"}},
    }
    return [{**webhook, **additions}, {**webhook, "name": f"{value}.example.com"}]


@pytest.mark.parametrize("kind", KINDS)
def test_controller_may_keep_or_remove_an_admins_additions(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """Otherwise it could not renew the caBundle."""
    (webhook,) = configuration(kind)["webhooks"]
    replaced = partial(replace_as_controller, guarded, shared, configuration(kind))
    own, other = added({**webhook, "clientConfig": {**SERVICE, "caBundle": "LS0tLS0="}}, "a")
    changed, new = added(webhook, "b")
    with stored(shared, kind, *added(webhook, "a")):
        assert replaced(own, other) == replaced(webhook) == ""
        expressions = [*own["namespaceSelector"]["matchExpressions"], IN]
        for selector in (changed["namespaceSelector"], {"matchExpressions": expressions}):
            message = replaced({**own, "namespaceSelector": selector}, other)
            assert f"may not add or change {EXPRESSIONS} of webhooks" in message
        for field in ("matchConditions", "objectSelector"):
            assert f"{CONTROLLER} may " in replaced({**own, field: changed[field]}, other), field
        assert "may only register webhooks named" in replaced(own, other, new)


def test_controller_may_write_only_configured_selectors(
    guarded: Guarded, shared: Namespace
) -> None:
    """Another account's policy, for another configuration."""
    labels = [
        {"matchLabels": {"a": "b"}, "matchExpressions": [expression]} for expression in (IN, EXISTS)
    ]
    names = InstallationNames(account="other")
    policy = webhooks_policy("configured", ["pods.holdfast.dev"], names, Selectors(*labels))
    guarded.plane.kubectl(
        "create", "-f", "-", stdin=yaml.safe_dump_all([policy, make_binding("configured")])
    )
    guarded.plane.kubectl(
        *("create", "clusterrolebinding", "other", "--clusterrole=far-too-much"),
        f"--user={names.controller}",
    )
    (own_expression,) = EXCLUDING_SELECTOR["matchExpressions"]
    namespaces = {**labels[0], "matchExpressions": [own_expression, IN]}
    user = guarded.user(shared, names.controller)

    def created(name: str = "pods.holdfast.dev", **selectors: Object) -> str:
        manifest = configuration(KINDS[0], namespaces=namespaces)
        manifest["webhooks"][0] |= {"objectSelector": labels[1], "name": name, **selectors}
        return refusal(user.create, manifest)

    new_expression = {"key": "more", "operator": "Exists"}
    shared.eventually(lambda: "may only register" in created(name="b.example.com"))
    assert created() == created(namespaceSelector=EXCLUDING_SELECTOR, objectSelector={}) == ""
    for selector_name, selector in {
        "namespaceSelector": namespaces,
        "objectSelector": labels[1],
    }.items():
        for field, value in {
            "matchLabels": {"a": "b", "c": "d"},
            "matchExpressions": [*selector["matchExpressions"], new_expression],
        }.items():
            changed: Object = {**selector, field: value}
            message = created("pods.holdfast.dev", **{selector_name: changed})
            assert f"may not add or change {selector_name}.{field} of webhooks" in message
    guarded.plane.kubectl("delete", "validatingadmissionpolicybinding", "configured")


@pytest.mark.parametrize("kind", KINDS)
def test_controller_works_alongside_an_admins_webhook(
    guarded: Guarded, shared: Namespace, kind: str
) -> None:
    """The admin's webhook is protected, and the controller can still renew its own caBundle."""
    (webhook,) = configuration(kind)["webhooks"]
    admin_webhook = {
        **webhook,
        "name": "theirs.example.com",
        "clientConfig": {"url": "https://theirs.example.com/check"},
        "rules": [{**webhook["rules"][0], "operations": ["*"], "resources": ["nodes"]}],
        "namespaceSelector": {},
    }
    replaced = partial(replace_as_controller, guarded, shared, configuration(kind))
    renewed = {**webhook, "clientConfig": {**SERVICE, "caBundle": "LS0tLS0="}}
    redirected = {**admin_webhook, "clientConfig": {"url": "https://evil.example.com/check"}}
    with stored(shared, kind, webhook, admin_webhook):
        assert replaced(renewed, admin_webhook) == replaced(renewed) == ""
        assert OTHER_SERVICE in replaced(renewed, redirected)
        assert OTHER_SERVICE in replaced(renewed, {**admin_webhook, "name": "more.example.com"})


def test_guard_does_not_limit_other_users_webhooks(shared: Namespace) -> None:
    changes = [change for change, _ in REJECTED_WEBHOOKS.values()]
    manifests = [configuration(kind, **change) for kind in KINDS for change in changes]
    text = yaml.safe_dump_all(manifests)
    shared.plane.kubectl("create", "-f", "-", "--dry-run=server", stdin=text)
