"""The seed that all that is random in the tests of faults follows from."""

import os

import pytest

SEED = int(os.environ.get("FAULTS_SEED", "9"))


def pytest_report_header() -> str:
    """Print it before they begin."""
    return f"faults: seed {SEED} (FAULTS_SEED)"


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED
