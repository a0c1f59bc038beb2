"""`holdfast freeze` and `holdfast thaw`: start and end the freeze of a namespace."""

from collections.abc import Mapping

import click
import msgspec

from holdfast.webhook.cli import commands, configured, options, rights, terminal
from holdfast.webhook.errors import ApiStatusError, CommandError, InvalidValueError
from holdfast.webhook.kube import listing
from holdfast.webhook.kube.api import MERGE_PATCH, Api
from holdfast.webhook.model import durations, freezes, reasons
from holdfast.webhook.model.freezes import FREEZE, FREEZE_UNTIL
from holdfast.webhook.model.objects import ApiObject
from holdfast.webhook.model.paths import api_path

FREEZE_EXAMPLES = """\b
Examples:
  holdfast freeze -n shop --reason "incident 42" --for 2h
  holdfast freeze --all --reason "cluster upgrade" """
THAW_EXAMPLES = """\b
Examples:
  holdfast thaw -n shop
  holdfast thaw --all"""


def _scope_options(command: options.Function) -> options.Function:
    """Add --all and --holdfast-namespace to a command, passed as `everywhere` and `own`."""
    everywhere = click.option(
        "--all",
        "everywhere",
        is_flag=True,
        help="All namespaces, by an annotation of Holdfast's namespace.",
    )
    return options.holdfast_namespace(everywhere(command))


@commands.command(epilog=FREEZE_EXAMPLES)
@_scope_options
@click.option("--reason", required=True, help="The reason, which Events of the pods show.")
@click.option(
    "--for",
    "length_ms",
    type=commands.DURATION,
    help="The duration, such as 2h; by default, until it is thawed.",
)
@options.dry_run
@options.target
def freeze(
    *,
    own: str,
    everywhere: bool,
    reason: str,
    length_ms: int | None,
    target: options.Target,
) -> None:
    """Freeze a namespace: release none of its held pods until it is thawed.

    `holdfast release` still releases single pods. You need permission to patch the namespace
    (ClusterRole holdfast-freezer).
    """
    try:
        text = reasons.parse(reason)
    except InvalidValueError as exc:
        raise click.UsageError(f"--reason: {exc}") from None
    if length_ms == 0:
        raise click.UsageError("--for: a freeze of 0s has no effect; give a longer time")
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    name = selected(target, cluster.namespace, own if everywhere else "")
    rights.require_freezing(cluster, name)
    old_namespace = read(cluster, name)
    until = None
    if length_ms is not None:
        cluster.request("GET", "/version")  # to learn the API server's time
        end_ms = time.now_ms() + length_ms
        until = durations.canonical_instant(end_ms + -end_ms % 1_000)  # rounded up to seconds
    new_namespace = write(cluster, name, {FREEZE: text, FREEZE_UNTIL: until})
    terminal.write([(f"{freezes.read_freeze(new_namespace, own)}{target.suffix}", "")])
    old_freeze = old_namespace and freezes.read_freeze(old_namespace, own)
    if old_freeze and old_freeze.until_ms > time.now_ms():
        configured.note(f"it replaces an earlier freeze: {old_freeze}")


@commands.command(epilog=THAW_EXAMPLES)
@_scope_options
@options.dry_run
@options.target
def thaw(*, own: str, everywhere: bool, target: options.Target) -> None:
    """Thaw a namespace: end its freeze.

    Its due pods are then released. With --all, namespaces that are also frozen themselves stay
    frozen.
    """
    time = listing.CommandClock()
    cluster = target.connect(time.observe)
    name = selected(target, cluster.namespace, own if everywhere else "")
    scope = "all namespaces" if everywhere else f"namespace {name}"
    rights.require_freezing(cluster, name)
    namespace = read(cluster, name)
    if namespace is not None and FREEZE not in namespace.annotations:
        terminal.write([(f"there is no freeze of {scope}", "")])
    else:
        write(cluster, name, {FREEZE: None, FREEZE_UNTIL: None})
        terminal.write([(f"the freeze of {scope} has ended{target.suffix}", "green")])
    namespace = read(cluster, own) if name != own else None
    other_freeze = namespace and freezes.read_freeze(namespace, own)
    if other_freeze and other_freeze.until_ms > time.now_ms():
        configured.note(
            f"{scope} stays frozen, because {other_freeze}; run {freezes.thaw(other_freeze)}"
        )


def selected(target: options.Target, namespace: str, own_namespace: str) -> str:
    """Return the namespace to annotate: `own_namespace`, Holdfast's, or if empty, `namespace`."""
    if not own_namespace:
        return namespace
    if target.namespace:
        raise click.UsageError("-n cannot be combined with --all")
    return own_namespace


def read(api: Api, namespace: str) -> ApiObject | None:
    """Return a namespace, or None if it does not exist or access is denied. Raises ClusterError."""
    try:
        return listing.one(api, api_path("v1", "namespaces", name=namespace), ApiObject)
    except ApiStatusError as exc:
        if exc.status != 403:
            raise
        return None


def write(api: Api, namespace: str, annotations: Mapping[str, str | None]) -> ApiObject:
    """Set or remove annotations of a namespace, and return it. Raises ClusterError."""
    path = api_path("v1", "namespaces", name=namespace)
    try:
        response = api.request(
            "PATCH",
            path,
            body=msgspec.json.encode({"metadata": {"annotations": annotations}}),
            content_type=MERGE_PATCH,
        )
    except ApiStatusError as exc:
        if exc.is_not_found:
            raise CommandError(f"namespace {namespace} not found; see kubectl get ns") from None
        raise
    return listing.decoded(response, path, msgspec.json.Decoder(ApiObject))
