"""Click commands with kubectl conventions: global flags anywhere, and kubectl-style help."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import click

CHOSEN = "holdfast.webhook.cli.chosen"
"""Key in `Context.meta` of the global flags, given before or after the subcommand."""
FILE = click.Path(dir_okay=False, path_type=Path)

_SHORT_WITH_EQUALS = re.compile(r"-([a-zA-Z])=(.*)", re.DOTALL)
_BY_NAMESPACE = frozenset({"list", "freeze", "thaw"})
"""Commands to which users often pass a namespace as an argument instead of with -n."""
_HINT = 'Use "holdfast options" for a list of global flags.'


class Duration(click.ParamType[int]):
    """Converts whole seconds or a duration into milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds; a default may already be in milliseconds."""
        from holdfast.webhook.errors import InvalidValueError  # noqa: PLC0415 - keeps --help fast
        from holdfast.webhook.model import durations  # noqa: PLC0415

        try:
            return value if isinstance(value, int) else durations.parse_delay(value)
        except InvalidValueError as exc:
            return self.fail(str(exc), param, ctx)


DURATION = Duration()


class GlobalOption(click.Option):
    """A flag that every command accepts, and that only `holdfast options` describes."""

    def __init__(self, *names: str, **settings: Any) -> None:
        super().__init__(names, expose_value=False, callback=_choose, **settings)


def _choose(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value not in {None, False, ()}:
        chosen(ctx)[str(param.name)] = value
    return value


def chosen(ctx: click.Context | None = None) -> MutableMapping[str, Any]:
    """Return the global flags that the user set, by name."""
    meta = (ctx or click.get_current_context()).meta
    flags: MutableMapping[str, Any] = meta.setdefault(CHOSEN, {})
    return flags


def _complete(kind: str) -> Callable[..., Any]:
    """Return a shell completion callback for names from a cluster or a kubeconfig."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from holdfast.webhook.cli import completing  # noqa: PLC0415 - keeps --help fast

        return completing.candidates(kind, ctx, incomplete)

    return complete


complete_pods = _complete("pods")
complete_held_pods = _complete("held")
complete_vms = _complete("vms")
complete_nodes = _complete("nodes")

GLOBALS: Sequence[GlobalOption] = (
    GlobalOption(
        "-n",
        "--namespace",
        shell_complete=_complete("namespaces"),
        help="The namespace; by default, the context's.",
    ),
    GlobalOption(
        "-A",
        "--all-namespaces",
        is_flag=True,
        help="All namespaces, for commands that list or select objects.",
    ),
    GlobalOption(
        "--kubeconfig", type=FILE, help="The kubeconfig; by default, found as kubectl does."
    ),
    GlobalOption("--context", shell_complete=_complete("contexts"), help="The kubeconfig context."),
    GlobalOption(
        "--cluster",
        shell_complete=_complete("clusters"),
        help="The kubeconfig cluster, instead of the context's.",
    ),
    GlobalOption(
        "--user",
        shell_complete=_complete("users"),
        help="The kubeconfig user, instead of the context's.",
    ),
    GlobalOption("--as", "as_user", help="The user to impersonate."),
    GlobalOption("--as-group", "as_groups", multiple=True, help="A group to impersonate."),
    GlobalOption("--as-uid", "as_uid", help="The UID to impersonate."),
    GlobalOption(
        "--request-timeout",
        type=DURATION,
        help="How long to wait for a response of the API server, such as 5s; by default, 30s.",
    ),
    GlobalOption(
        "-v", "--v", "verbosity", type=int, help="The log level; from 6 on, requests are logged."
    ),
)


class _Conventions(click.Command):
    """Adds the global flags, accepts `-o=json`, and formats help as kubectl does."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("options_metavar", "[options]")
        super().__init__(*args, **settings)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the flags that show the help."""
        del ctx
        return ["-h", "--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, then the global flags that it does not redefine."""
        params = super().get_params(ctx)
        names = {name for param in params for name in param.opts}
        return [*params, *(option for option in GLOBALS if not names & {*option.opts})]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, including kubectl's forms `-o=json` and `--watch=true`."""
        flags = {
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and param.is_flag
            for name in param.opts
        }
        try:
            return super().parse_args(ctx, [*_split(args, flags)])
        except click.UsageError as exc:
            if self.name in _BY_NAMESPACE and "unexpected extra argument" in exc.message:
                hint = f"{self.name} takes no names; choose a namespace with -n"
                raise click.UsageError(hint, ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options."""
        with formatter.section("Options"):
            formatter.write_dl(option_rows(ctx, self.get_params(ctx)))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and a hint about the global flags."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(_HINT)


class Command(_Conventions):
    """A command that rejects -A unless it defines the flag."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises UsageError if -A is not supported."""
        flags = {name for param in self.params for name in param.opts}
        if "all_namespaces" in chosen(ctx) and "-A" not in flags:
            cure = "use --all" if "--all" in flags else "give a namespace with -n"
            raise click.UsageError(f"-A is not supported by {self.name}; {cure}")
        return super().invoke(ctx)


class Group(_Conventions, click.Group):
    """A group of commands."""

    command_class = Command

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, subcommand_metavar="COMMAND", **settings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and commands of the group."""
        _Conventions.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a function a `Command`, like `click.command`."""
    return click.command(name, cls=Command, **settings)


def group(**settings: Any) -> Callable[[Callable[..., Any]], Group]:
    """Return a decorator that makes a function a `Group`, like `click.group`."""
    return click.group(cls=Group, **settings)


def option_rows(
    ctx: click.Context, params: Sequence[click.Parameter], *, global_flags: bool = False
) -> list[tuple[str, str]]:
    """Return names and help of the visible options, either the global or the other ones."""
    return [
        (_names(param), _help(param, ctx))
        for param in params
        if isinstance(param, click.Option)
        and not param.hidden
        and isinstance(param, GlobalOption) is global_flags
    ]


def _names(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(
        f"/{name}" for name in option.secondary_opts
    )
    if option.is_flag:
        return names
    kind = "strings" if option.multiple else _kind(option.type)
    return f"{names} {option.metavar or kind}"


def _kind(kind: click.ParamType[Any]) -> str:
    """Return the name of a type as in kubectl's help."""
    if isinstance(kind, Duration):
        return kind.name
    return "int" if kind is click.INT else "string"


def _help(option: click.Option, ctx: click.Context) -> str:
    parts = [option.help or ""]
    if isinstance(option.type, click.Choice):
        parts.append(f"One of: {', '.join(map(str, option.type.choices))}.")
    default = option.get_default(ctx)
    if option.show_default and not option.is_flag and default not in {None, ""}:
        parts.append(f"(default {default})")
    if option.show_envvar and option.envvar:
        parts.append(f"(environment {option.envvar})")
    if option.required:
        parts.append("(required)")
    return " ".join(filter(None, parts))


def _split(args: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    """Rewrite kubectl's forms `--flag=true` and `-o=json`, which click does not support."""
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            yield from (arg, *remaining)
            return
        name, _, value = arg.partition("=")
        if name in flags and value in {"true", "false"}:
            yield from [name] if value == "true" else []
            continue
        match = _SHORT_WITH_EQUALS.fullmatch(arg)
        yield from (f"-{match[1]}", match[2]) if match else (arg,)
