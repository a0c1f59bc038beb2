"""Run `python -m controlplane`."""

from controlplane.cli import main

main(prog_name="python -m controlplane")
