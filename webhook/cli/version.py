"""`holdfast version`: of this command, and of the cluster."""

from importlib.metadata import version as installed

import click
import msgspec

from holdfast.webhook.cli import options, terminal

EXAMPLES = """\b
Examples:
  holdfast version --client
  holdfast version -o json"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--client", is_flag=True, help="Show only this command's version; no cluster is needed."
)
@options.output
@options.target
def version(*, client: bool, output: str, target: options.Target) -> None:
    """Show the versions of this command and of the cluster."""
    versions = {"holdfast": installed("holdfast")}
    if not client:
        answer = msgspec.json.decode(target.connect().request("GET", "/version"))
        versions["kubernetes"] = str(answer.get("gitVersion", "unknown"))
    if output in {"json", "yaml"}:
        terminal.write_document(versions, output)
    else:
        terminal.write((f"{name} {number}", "") for name, number in versions.items())
