"""The seed of all random choices in the fault tests."""

import os

import pytest

SEED = int(os.environ.get("FAULTS_SEED", "9"))


def pytest_report_header() -> str:
    """Print the seed before the tests start."""
    return f"faults: seed {SEED} (FAULTS_SEED)"


@pytest.fixture(scope="session")
def seed() -> int:
    return SEED
