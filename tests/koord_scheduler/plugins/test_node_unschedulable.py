"""Cordoned nodes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import QueueingHint
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_constraints import NodeUnschedulable
from tests.support.clusters import Cluster, node, read_node
from tests.support.scheduler.framework import Kit, make_pod

TAINT = "node.kubernetes.io/unschedulable"


def view(*cordoned: bool) -> View:
    nodes = [node(f"n{at}", unschedulable=each) for at, each in enumerate(cordoned)]
    return Cluster(nodes=nodes).snapshot().view()


@pytest.mark.parametrize(
    ("tolerations", "message"),
    [
        ([], "0/2 nodes are available: 2 node(s) were unschedulable."),
        ([{"key": "other", "operator": "Exists"}], "2 node(s) were unschedulable."),
        ([{"key": TAINT, "operator": "Exists", "effect": "NoExecute"}], "2 node(s) were"),
        ([{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}], ""),
        ([{"operator": "Exists"}], ""),
    ],
)
async def test_only_pods_that_tolerate_it_go_to_cordoned_nodes(
    tolerations: list[Any], message: str
) -> None:
    """Preemption would not help the others."""
    search = await Kit().search(filter={"NodeUnschedulable": NodeUnschedulable(None, _no_handle())})
    pod = make_pod(tolerations=tolerations)
    found = search.search(CycleState(), pod, view(True, True))
    assert found.feasible.all() == (not message)
    assert message in found.diagnosis.message()


@given(
    st.lists(st.booleans(), max_size=6),
    st.lists(st.sampled_from([{"key": TAINT, "operator": "Exists"}, {"key": "other"}]), max_size=2),
)
def test_both_forms_agree(cordoned: list[bool], tolerations: list[Any]) -> None:
    """On any nodes."""
    plugin = NodeUnschedulable(None, _no_handle())
    assert_forms_agree(plugin, make_pod(tolerations=tolerations), view(*cordoned))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, False, QueueingHint.QUEUE),
        (None, True, QueueingHint.SKIP),
        (True, False, QueueingHint.QUEUE),
        (False, False, QueueingHint.SKIP),
        (True, True, QueueingHint.SKIP),
    ],
)
def test_a_node_helps_that_becomes_schedulable(
    old: bool | None, new: bool, hint: QueueingHint
) -> None:
    """Or comes as one."""
    nodes, _ = NodeUnschedulable(None, _no_handle()).events_to_register()
    assert nodes.hint is not None
    before = None if old is None else read_node(node("n", unschedulable=old))
    assert nodes.hint(make_pod(), before, read_node(node("n", unschedulable=new))) is hint


def _no_handle() -> Any:
    return None
