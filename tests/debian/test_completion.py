"""The completion scripts, run in real shells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FISH = """
holdfast completion fish | source
complete -C 'holdfast vers'
complete -C 'holdfast completion pow'
complete -C 'holdfast list --all-n'
"""
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; source <(holdfast completion zsh)'
zpty -n -w shell $'holdfast vers\t'
zpty -r -m shell typed '*holdfast version*'
zpty -n -w shell $'\C-uholdfast completion pow\t'
zpty -r -m shell typed '*powershell*'
zpty -n -w shell $'\C-uholdfast list --all-n\t'
zpty -r -m shell typed '*--all-namespaces*'
print -l -- version powershell --all-namespaces
"""


@pytest.mark.parametrize(
    ("shell", "script"), [pytest.param("fish", FISH, id="fish"), pytest.param("zsh", ZSH, id="zsh")]
)
def test_shell_completes_commands_values_and_flags(shell: str, script: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        [shell, "-c", script],
        env={**os.environ, "PATH": path, "TERM": "xterm"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    words = [line.split()[0] for line in process.stdout.splitlines()]
    assert words == ["version", "powershell", "--all-namespaces"]
