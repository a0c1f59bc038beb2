"""A fuzzer process: `python -m tests.fuzz.drive TARGET`, followed by arguments for libFuzzer."""

import importlib
import sys

import atheris  # type: ignore[import-untyped] # pinned separately; see scripts/fuzz

JSON = {"reviews", "configuration", "kubeconfig"}
"""Targets that start with JSON; mutations of bytes are tried as well, which find YAML."""
INSTRUMENTED = ["holdfast.webhook", "yaml", "kubernetes.config"]


def main() -> None:
    name = sys.argv[1]
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=INSTRUMENTED):
        targets = importlib.import_module("tests.fuzz.targets")
    mutations = importlib.import_module("tests.fuzz.mutations")

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        return bytes(mutations.mutate_json(data, max_size, seed, atheris.Mutate))

    # a merge restarts itself in a shell, with this command
    command = f"{sys.executable} -m tests.fuzz.drive {name}"
    options = {"custom_mutator": mutate} if name in JSON else {}
    atheris.Setup([command, *sys.argv[2:]], targets.TARGETS[name], **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
