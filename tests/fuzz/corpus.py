"""The corpus of each target: a file with one input per line, as a JSON string in Latin-1."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"


def read(target: str) -> list[bytes]:
    """Return the inputs of a target; empty if it has no file yet."""
    file = FOLDER / f"{target}.jsonl"
    lines = file.read_text("ascii").splitlines() if file.exists() else []
    return [json.loads(line).encode("latin-1") for line in lines]


def write(target: str, folder: Path) -> int:
    """Write a folder's files as the corpus of a target, shortest first; return their number."""
    inputs = sorted(
        (file.read_bytes() for file in folder.iterdir()),
        key=lambda content: (len(content), content),
    )
    lines = [json.dumps(content.decode("latin-1")) + "\n" for content in inputs]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.jsonl").write_text("".join(lines), "ascii")
    return len(inputs)


def unpack(inputs: Iterable[bytes], folder: Path) -> None:
    """Write each input to a file named by its hash, as libFuzzer does."""
    for content in inputs:
        name = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        (folder / name).write_bytes(content)
