"""The kubepods cgroup of this machine, which one test at a time may have."""

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def kubepods() -> Iterator[None]:
    """Wait for the other processes of the test run."""
    with (Path(__file__).parents[2] / "docs/examples/busy-pod.sh").open() as script:
        fcntl.flock(script, fcntl.LOCK_EX)
        yield
