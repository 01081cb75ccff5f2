"""The order of the queue."""

from typing import Any

import pytest

from koord.component.plugins.discovery import discover
from koord_scheduler.plugin import PluginRegistry, QueuedPod
from koord_scheduler_plugins.queueing import PrioritySort
from tests.support.scheduler.framework import make_pod


@pytest.mark.parametrize(
    ("first", "second", "less"),
    [
        ((9, 2.0), (1, 1.0), True),
        ((1, 1.0), (9, 2.0), False),
        ((5, 1.0), (5, 2.0), True),
        ((5, 2.0), (5, 1.0), False),
        ((5, 1.0), (5, 1.0), False),
        ((None, 1.0), (0, 2.0), True),
        ((-1, 1.0), (None, 2.0), False),
    ],
)
def test_by_priority_then_by_time(first: Any, second: Any, less: bool) -> None:
    """No priority is 0."""
    pods = [
        QueuedPod(pod=make_pod(priority=priority), timestamp=time)
        for priority, time in (first, second)
    ]
    assert PrioritySort(None, _no_handle()).less(*pods) is less


def test_shipped_plugins_are_found_through_their_entry_points() -> None:
    """As a third party's."""
    registry = PluginRegistry()
    assert discover(registry) == []
    for name in ("PrioritySort", "NodeUnschedulable"):
        entry = registry.get(name)
        assert entry is not None
        assert entry.error == ""


def _no_handle() -> Any:
    return None
