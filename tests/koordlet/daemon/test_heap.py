"""Objects that the garbage collector does not visit."""

import gc
from collections.abc import Iterator

import pytest

from koord.component.heap import THRESHOLDS, settle_heap


@pytest.fixture
def own_collector() -> Iterator[None]:
    """Gives the collector of this process back as it was."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("own_collector")
async def test_what_was_there_at_the_start_is_set_aside() -> None:
    """A full collection that looks at every imported module holds up the loop for 40 ms."""
    settle_heap()

    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 1000
    assert gc.get_threshold() == THRESHOLDS
