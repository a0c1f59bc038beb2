"""The files that -f, -R and -k select."""

from pathlib import Path

import pytest

from holdfast.webhook.cli import manifests
from holdfast.webhook.errors import CommandError


def make_folder(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    for name in ("b.yaml", "a.json", "notes.txt", "sub/c.yml"):
        (root / name).write_text("")
    return root


@pytest.mark.parametrize(
    ("recursive", "expected"),
    [(False, ["a.json", "b.yaml"]), (True, ["a.json", "b.yaml", "sub/c.yml"])],
)
def test_folder_expands_to_its_manifests(
    recursive: bool, expected: list[str], tmp_path: Path
) -> None:
    root = make_folder(tmp_path / "web")
    files = [*manifests.files(["-", str(root), "x.txt"], recursive=recursive)]
    assert files == ["-", *(str(root / name) for name in expected), "x.txt"]


def test_folder_without_manifests(tmp_path: Path) -> None:
    (make_folder(tmp_path / "web") / "sub" / "c.yml").unlink()
    with pytest.raises(CommandError, match=r"no file ends in \.yaml, \.yml or \.json; add -R"):
        [*manifests.files([str(tmp_path)], recursive=False)]


def test_url_error_suggests_piping_from_curl() -> None:
    url = "https://example.com/web.yaml"
    with pytest.raises(CommandError, match=rf"use curl -fsSL {url} \| holdfast preview -f -"):
        [*manifests.files([url], recursive=False)]


SCRIPT = '#!/bin/sh\necho "kind: ${0##*/} $*"\n'


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        pytest.param({"kubectl": SCRIPT}, "kind: kubectl kustomize DIR\n", id="kubectl"),
        pytest.param({"kustomize": SCRIPT}, "kind: kustomize build DIR\n", id="kustomize"),
        pytest.param({}, "neither kubectl nor kustomize is on the PATH", id="neither"),
        pytest.param(
            {"kubectl": "#!/bin/sh\necho 'error: no such\x1b thing' >&2\nexit 1\n"},
            r"kubectl kustomize DIR: error: no such\x1b thing",
            id="failure",
        ),
    ],
)
def test_kustomization(
    tools: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in tools.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        assert manifests.kustomized("DIR").decode() == expected
    except CommandError as exc:
        assert expected in str(exc)  # noqa: PT017 - the rows have both outcomes
