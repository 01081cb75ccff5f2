"""The kit of these tests."""

import pytest

from tests.support.descheduler.framework import Kit


@pytest.fixture
def kit() -> Kit:
    return Kit()
