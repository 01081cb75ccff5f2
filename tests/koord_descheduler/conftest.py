"""The kit of these tests."""

import pytest
from frameworkkit import Kit


@pytest.fixture
def kit() -> Kit:
    return Kit()
