"""The image depends on its sources only. Runs outside the sandbox."""

import sys

import pytest

from controlplane import image
from controlplane.progress import PlainReport
from tests.node.installation import TAGS


@pytest.mark.timeout(600)
def test_image_build_is_reproducible() -> None:
    assert image.is_reproducible(TAGS[0], PlainReport(sys.stderr))


def test_versions_have_different_images() -> None:
    report = PlainReport(sys.stderr)
    assert len({image.identity(image.build(tag, report)) for tag in TAGS}) == len(TAGS)
