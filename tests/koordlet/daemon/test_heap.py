"""Objects that the garbage collector does not visit."""

import gc
from collections.abc import Iterator

import pytest

from koord.component.process import (
    GROWING,
    THRESHOLDS,
    freeze_growing_heap,
    freeze_heap,
    restore_gc,
)


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
    freeze_heap()

    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 1000
    assert gc.get_threshold() == THRESHOLDS


@pytest.mark.usefixtures("own_collector")
async def test_a_heap_that_grows_is_left_without_a_look() -> None:
    """What has come since the start is set aside at once, references to it or not."""
    freeze_growing_heap()
    assert gc.get_threshold() == GROWING
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    restore_gc()

    assert gc.get_freeze_count() >= frozen + len(kept)
