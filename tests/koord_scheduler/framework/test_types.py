"""Events that plugins register, and those that happen; and the log of rows that have changed."""

import pytest

from koord_scheduler.framework.types import (
    WILDCARD,
    Action,
    ChangedRows,
    ClusterEvent,
    EventResource,
    NotedRows,
)

NODE_LABEL = ClusterEvent(EventResource.NODE, Action.UPDATE_NODE_LABEL)


@pytest.mark.parametrize(
    ("registered", "occurred", "covered"),
    [
        (NODE_LABEL, NODE_LABEL, True),
        (ClusterEvent("Node", Action.ADD | Action.UPDATE), NODE_LABEL, True),
        (ClusterEvent("Node", Action.ADD | Action.DELETE), NODE_LABEL, False),
        (ClusterEvent("Namespace", Action.ALL), NODE_LABEL, False),
        (ClusterEvent("*", Action.UPDATE), NODE_LABEL, True),
        (WILDCARD, NODE_LABEL, True),
        (ClusterEvent("Pod", Action.DELETE), ClusterEvent("AssignedPod", Action.DELETE), True),
        (ClusterEvent("Pod", Action.ALL), ClusterEvent("UnschedulablePod", Action.UPDATE), True),
        (ClusterEvent("AssignedPod", Action.ALL), ClusterEvent("Pod", Action.ADD), False),
        (ClusterEvent("things.v1.shop.io", Action.ADD), NODE_LABEL, False),
        (
            ClusterEvent("things.v1.shop.io", Action.ALL),
            ClusterEvent("things.v1.shop.io", Action.UPDATE_OTHER),
            True,
        ),
    ],
)
def test_which_registered_event_means_what_happened(
    registered: ClusterEvent, occurred: ClusterEvent, covered: bool
) -> None:
    """Resource and action both; Pod is both kinds of pods."""
    assert registered.covers(occurred) is covered


def test_only_everything_is_a_wildcard() -> None:
    """All actions of all kinds."""
    assert WILDCARD.wildcard
    assert not ClusterEvent("*", Action.ADD).wildcard
    assert not ClusterEvent("Node", Action.ALL).wildcard


def test_each_reader_of_a_log_takes_what_was_noted_since() -> None:
    """A row once; None where more was noted than the log keeps."""
    log = ChangedRows()
    log.note(5)
    early, nothing = NotedRows(log), NotedRows(None)
    assert (early.take(), nothing.take()) == ((), ())
    log.note(3)
    late = NotedRows(log)
    for row in (8, 3, 8):
        log.note(row)
    assert (early.take(), late.take()) == ({3, 8}, {3, 8})
    for row in range(64):
        log.note(row)
    assert early.take() == set(range(64))
    log.note(1)
    assert (early.take(), late.take(), late.take()) == ({1}, None, ())


def test_a_log_refuses_what_is_no_row() -> None:
    """-1 would be the last node."""
    with pytest.raises(ValueError, match="row: wanted one of a view, found -1"):
        ChangedRows().note(-1)
