"""Events that plugins register, and those that happen."""

import pytest

from koord_scheduler.framework.types import WILDCARD, Action, ClusterEvent, EventResource

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
