"""The image is made of its sources alone. Runs outside of the sandbox."""

import sys

import pytest

from controlplane import image
from controlplane.progress import PlainReport
from tests.node.installation import TAGS


@pytest.mark.timeout(600)
def test_an_image_that_is_built_twice_is_the_same() -> None:
    assert image.is_reproducible(TAGS[0], PlainReport(sys.stderr))


def test_another_version_is_another_image() -> None:
    report = PlainReport(sys.stderr)
    assert len({image.identity(image.build(tag, report)) for tag in TAGS}) == len(TAGS)
