"""How many nodes are looked at, and in which order."""

import numpy as np
import pytest

from koord_scheduler.framework.nodes.search import nodes_to_find, round_robin
from tests.support.clusters import Cluster, node


@pytest.mark.parametrize(
    ("nodes", "percentage", "wanted"),
    [
        (80, 0, 80),
        (1000, 0, 420),
        (5000, 0, 500),
        (6000, 0, 300),
        (150, 30, 100),
        (5000, None, 5000),
        (5000, 100, 5000),
        (99, 5, 99),
    ],
)
def test_how_many_feasible_nodes_are_enough(
    nodes: int, percentage: int | None, wanted: int
) -> None:
    """0 is Kubernetes' rule by size; where nothing is set all nodes are scored."""
    assert nodes_to_find(nodes, percentage, scored=True) == wanted
    assert nodes_to_find(nodes, percentage, scored=False) == 1


def test_nodes_come_in_turns_from_each_zone() -> None:
    """A zone is one of its region; nodes without labels are a zone, too."""
    region, zone = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
    places = ["ra", "ra", "ra", "sa", "sa", "", "rb"]
    nodes = [
        node(f"n{at}", {region: place[0], zone: place[1]} if place else None)
        for at, place in enumerate(places)
    ]
    view = Cluster(nodes=nodes).snapshot().view()
    order = round_robin(view)
    assert sorted(order.tolist()) == list(range(7))
    taken = [places[row] for row in order]
    assert sorted(taken[:4]) == ["", "ra", "rb", "sa"]
    assert taken[4:] == [taken[taken.index("ra")], "sa", "ra"] or taken[4:] == ["sa", "ra", "ra"]
    assert round_robin(Cluster().snapshot().view()).tolist() == []
    assert np.issubdtype(order.dtype, np.integer)
