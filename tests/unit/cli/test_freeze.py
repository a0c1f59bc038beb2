"""`holdfast freeze` and `thaw`, and the freezes that other commands show."""

import pytest
from click.testing import CliRunner

from holdfast.webhook.cli import freeze_lookup
from holdfast.webhook.cli.freeze import freeze, selected, write
from holdfast.webhook.cli.freeze_lookup import FreezeLookup
from holdfast.webhook.cli.options import Target
from holdfast.webhook.errors import ApiStatusError, CommandError
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL, OWN_NAMESPACE
from tests.support.builders import CREATED_MS, held
from tests.support.fakes import NAMESPACES, FakeApi, raising, status_error
from tests.support.served import ServedApi


def frozen(**reasons: str) -> FakeApi:
    """Create an API with these frozen namespaces; `own` is Holdfast's namespace."""
    api = FakeApi()
    api.put(f"{NAMESPACES}/other", {})
    for name, reason in reasons.items():
        path = f"{NAMESPACES}/{OWN_NAMESPACE if name == 'own' else name}"
        api.put(path, {"metadata": {"annotations": {FREEZE: reason}}})
    return api


def lookup(api: FakeApi, namespace: str = "") -> FreezeLookup:
    return FreezeLookup(api, namespace, lambda: CREATED_MS, OWN_NAMESPACE)


@pytest.mark.parametrize("namespace", ["", "shop"], ids=["all", "one"])
def test_lookup_finds_namespace_and_cluster_freezes(namespace: str) -> None:
    shop_freeze = lookup(frozen(shop="incident 42"), namespace)("shop")
    assert str(shop_freeze) == "namespace shop is frozen: incident 42"
    assert lookup(frozen(own="upgrade"), namespace)("shop") is not None
    assert lookup(frozen(), namespace)("shop") is None


def test_freezes_are_reread_after_max_age(monkeypatch: pytest.MonkeyPatch) -> None:
    api, now = frozen(shop="x"), [0.0]
    monkeypatch.setattr(freeze_lookup, "boot_time", lambda: now[0])
    find = lookup(api)
    assert find("shop")
    api.delete(f"{NAMESPACES}/shop")
    assert find("shop")
    now[0] = freeze_lookup.MAX_AGE_SECONDS
    assert find("shop") is None


def test_lookup_works_without_access_to_holdfast_namespace() -> None:
    api = frozen(shop="x")
    api.before("GET", lambda: None, raising(status_error(403)))
    assert lookup(api, "shop")("shop")


def test_missing_namespace_permission_is_noted_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze_lookup, "MAX_AGE_SECONDS", 0.0)
    api = frozen(shop="x")
    api.before("GET", *[raising(status_error(403))] * 2)
    find = lookup(api)
    assert [find("shop"), find("shop")] == [None, None]
    stderr = capsys.readouterr().err
    assert stderr == "note: no permission to read namespaces; freezes are not shown\n"
    api.before("GET", raising(status_error(500)))
    with pytest.raises(ApiStatusError):
        find("shop")


def test_annotations_are_merged() -> None:
    api = frozen(shop="x")
    namespace = write(api, "shop", {FREEZE: None, FREEZE_UNTIL: "y"})
    assert namespace.metadata.annotations == {FREEZE_UNTIL: "y"}
    api.before("PATCH", raising(status_error(404, reason="NotFound")))
    with pytest.raises(CommandError, match="namespace missing not found"):
        write(api, "missing", {FREEZE: None, FREEZE_UNTIL: None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reason", " "], "it is empty: write a reason"),
        (["--reason", "a\x1b[31m"], "use printable characters"),
        (["--reason", "x", "--for", "2d"], 'h, m, s and ms ("48h"); use'),
        (["--reason", "x", "--for", "0s"], "has no effect; give a"),
        ([], "Missing option '--reason'"),
    ],
)
def test_invalid_options(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(freeze, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_freeze_notes_replacement_and_thaw_reports_no_freeze(cluster: ServedApi) -> None:
    cluster.api.put(f"{NAMESPACES}/default", {"metadata": {"annotations": {"a": "b"}}})
    result = cluster.run("freeze", "--reason", "incident 42")
    assert result.stdout == "namespace default is frozen: incident 42\n"
    assert result.stderr == ""
    assert cluster.run("freeze", "--reason", "upgrade", "--for", "2h").stderr == (
        "note: it replaces an earlier freeze: namespace default is frozen: incident 42\n"
    )
    assert cluster.run("thaw").stdout == "the freeze of namespace default has ended\n"
    assert cluster.run("thaw").stdout == "there is no freeze of namespace default\n"
    cluster.api.put(f"{NAMESPACES}/{OWN_NAMESPACE}", {"metadata": {}})
    assert cluster.run("thaw", "--all").stdout == "there is no freeze of all namespaces\n"


@pytest.mark.parametrize("reason", ["incident", None])
def test_thaw_notes_remaining_cluster_freeze(reason: str | None, cluster: ServedApi) -> None:
    annotations = {} if reason is None else {FREEZE: reason}
    cluster.api.put(f"{NAMESPACES}/default", {"metadata": {"annotations": annotations}})
    cluster_freeze = {FREEZE: "upgrade"}
    cluster.api.put(f"{NAMESPACES}/{OWN_NAMESPACE}", {"metadata": {"annotations": cluster_freeze}})
    note = "namespace default stays frozen, because all namespaces are frozen: upgrade"
    assert cluster.run("thaw").stderr == f"note: {note}; run holdfast thaw --all\n"
    cluster_freeze[FREEZE_UNTIL] = "2020-01-01T00:00:00Z"
    cluster.api.put(f"{NAMESPACES}/{OWN_NAMESPACE}", {"metadata": {"annotations": cluster_freeze}})
    assert cluster.run("thaw").stderr == ""
    cluster.forbidden = {f"{NAMESPACES}/{OWN_NAMESPACE}"}
    assert cluster.run("thaw").stderr == ""


@pytest.mark.parametrize("mode", ["none", "client", "server"])
@pytest.mark.parametrize("command", [["freeze", "--reason", "x"], ["thaw"]])
def test_missing_permission_is_reported_in_dry_runs(
    cluster: ServedApi, command: list[str], mode: str
) -> None:
    cluster.api.put(f"{NAMESPACES}/default", {"metadata": {"annotations": {FREEZE: "old"}}})
    cluster.unreviewed.add("namespaces")
    result = cluster.run(*command, f"--dry-run={mode}", code=1)
    assert "you may not freeze or thaw namespace default: the verb 'patch' on namespaces" in (
        result.stderr
    )
    assert result.stderr.endswith("bind the ClusterRole holdfast-freezer in this namespace")


def test_list_notes_a_freeze_without_held_pods(cluster: ServedApi) -> None:
    cluster.api.put(f"{NAMESPACES}/default", {"metadata": {"annotations": {FREEZE: "upgrade"}}})
    note = "note: namespace default is frozen: upgrade\n"
    assert note in cluster.run("list").stderr
    cluster.api.put_pod(held({"delay": "1h"}))
    assert "note" not in cluster.run("list").stderr


@pytest.mark.parametrize("namespace", ["default", OWN_NAMESPACE])
@pytest.mark.parametrize("key", ["approval", "pace", "after"])
def test_freeze_is_shown_for_pods_without_a_due_time(
    key: str, namespace: str, cluster: ServedApi
) -> None:
    annotation = f"holdfast.dev/{key}"
    value = {"approval": "why", "pace": "1", "after": "job/none"}[key]
    cluster.api.put_pod(held({annotation: value}, gates=[annotation]))
    metadata = {"annotations": {FREEZE: "upgrade"}}
    cluster.api.put(f"{NAMESPACES}/{namespace}", {"metadata": metadata})
    frozen_text = "all namespaces are" if namespace == OWN_NAMESPACE else "namespace default is"
    assert f"{key}={value}, freeze=upgrade" in cluster.run("list").stdout
    assert (
        f"is held: {frozen_text} frozen: upgrade; {key}" in cluster.run("explain", "web-0").stdout
    )


def test_cluster_freeze_uses_the_installation_namespace() -> None:
    api = FakeApi()
    api.put(f"{NAMESPACES}/elsewhere", {"metadata": {"annotations": {FREEZE: "upgrade"}}})
    find = FreezeLookup(api, "shop", lambda: CREATED_MS, "elsewhere")
    assert str(find("shop")) == "all namespaces are frozen: upgrade"
    assert selected(Target(), "default", "elsewhere") == "elsewhere"
