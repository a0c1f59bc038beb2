"""`holdfast completion`: print shell completion scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from click.shell_completion import ShellComplete, get_completion_class

from holdfast.webhook.cli import commands

_VARIABLE = "_HOLDFAST_COMPLETE"
_POWERSHELL = """\
Register-ArgumentCompleter -Native -CommandName holdfast -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Select-Object -Skip 1 |
        Where-Object { $_.Extent.EndOffset -lt $cursorPosition } | ForEach-Object { "$_" })
    kubectl_complete-holdfast @words "$wordToComplete" | Where-Object { $_ -notmatch '^:\\d+$' } |
        ForEach-Object {
            $value, $help = $_ -split "`t", 2
            if (-not $help) { $help = $value }
            [System.Management.Automation.CompletionResult]::new(
                $value, $value, 'ParameterValue', $help)
        }
}
"""

EXAMPLES = """\b
Examples:
  source <(holdfast completion bash)      in ~/.bashrc
  source <(holdfast completion zsh)       in ~/.zshrc, after compinit
  holdfast completion fish | source       in ~/.config/fish/config.fish
  holdfast completion powershell | Out-String | Invoke-Expression    in $PROFILE"""


@commands.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "powershell"]))
def completion(*, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, flags, pods, workloads after TYPE/, VMs, namespaces and contexts.
    `kubectl holdfast` completes through kubectl's own completion and `kubectl_complete-holdfast` on
    the PATH.
    """
    if shell == "powershell":
        click.echo(_POWERSHELL, nl=False)
        return
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click supports these shells
    click.echo(kind(root, {}, "holdfast", _VARIABLE).source())


def lines(root: click.Command, words: Sequence[str]) -> Iterator[str]:
    """Yield completions of the last word, each followed by a tab and its help."""
    *finished, incomplete = words or [""]
    shell = ShellComplete(root, {}, "holdfast", _VARIABLE)
    for item in shell.get_completions(finished, incomplete):
        yield f"{item.value}\t{item.help or ''}".rstrip()
