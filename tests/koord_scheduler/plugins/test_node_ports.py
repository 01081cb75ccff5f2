"""Ports of nodes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, QueueingHint
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_constraints import NodePorts
from tests.support.clusters import Cluster, Json, finished, node, pod, read_pod
from tests.support.scheduler.framework import Kit, make_pod


def port(number: int, protocol: str = "TCP", address: str = "") -> Json:
    host = {"hostIP": address} if address else {}
    return {"containerPort": number, "hostPort": number, "protocol": protocol, **host}


def view(*pods: Json) -> View:
    return Cluster(nodes=[node("n0"), node("n1")], pods=list(pods)).snapshot().view()


def there(*ports: Json, name: str = "there") -> Json:
    return pod(name, "n0", ports=list(ports))


@pytest.mark.parametrize(
    ("wanted", "taken", "passes"),
    [
        ([], [port(80)], True),
        ([{"containerPort": 80}], [port(80)], True),
        ([port(80)], [], True),
        ([port(80)], [port(80)], False),
        ([port(80)], [port(81)], True),
        ([port(80, "UDP")], [port(80)], True),
        ([port(80), port(81)], [port(81)], False),
        ([port(80, "TCP", "127.0.0.1")], [port(80)], False),
        ([port(80)], [port(80, "TCP", "127.0.0.1")], False),
        ([port(80, "TCP", "127.0.0.1")], [port(80, "TCP", "127.0.0.2")], True),
        ([port(80, "TCP", "127.0.0.1")], [port(80, "UDP")], True),
    ],
)
async def test_a_port_that_is_taken_cannot_be_had(
    wanted: list[Json], taken: list[Json], passes: bool
) -> None:
    plugins = {"NodePorts": NodePorts(None, _no_handle())}
    search = await Kit().search(preFilter=plugins, filter=plugins)
    found = search.search(CycleState(), make_pod(ports=wanted), view(there(*taken)))
    assert found.feasible[1]
    assert bool(found.feasible[0]) == passes


async def test_words() -> None:
    search = await Kit().search(filter={"NodePorts": NodePorts(None, _no_handle())})
    nodes = view(there(port(80)), pod("other", "n1", ports=[port(80)]))
    found = search.search(CycleState(), make_pod(ports=[port(80)]), nodes)
    reason = "2 node(s) didn't have free ports for the requested pod ports."
    assert found.diagnosis.message() == f"0/2 nodes are available: {reason}"
    assert found.diagnosis.node_statuses is not None
    status = found.diagnosis.node_statuses.status(0)
    assert status is not None
    assert status.code is Code.UNSCHEDULABLE


def test_ports_of_finished_pods_and_of_those_that_left_are_free() -> None:
    plugin, wanting = NodePorts(None, _no_handle()), make_pod(ports=[port(80)])
    nodes = view(finished(there(port(80))), there(port(80), port(81), name="second"))
    at = nodes.traits.rows["n0"]
    assert not plugin.filter_all(CycleState(), wanting, nodes)[at]
    what_if = HypotheticalCluster(nodes)
    what_if.remove("default/second", "n0")
    assert plugin.filter_all(CycleState(), wanting, what_if.view())[at]
    assert not plugin.filter_all(CycleState(), wanting, nodes)[at]


PORTS = st.builds(port, st.sampled_from((80, 81)), st.sampled_from(("TCP", "UDP")),
                  st.sampled_from(("", "0.0.0.0", "127.0.0.1", "127.0.0.2")))  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.sampled_from("pqr"),
        st.sampled_from(("n0", "n1", "", "gone")),
        st.lists(PORTS, max_size=2),
        st.booleans(),
    ),
    max_size=8,
)


@given(EVENTS, st.lists(PORTS, max_size=2), st.booleans())
def test_both_forms_agree(events: Any, wanted: list[Json], without: bool) -> None:
    """However pods have come, changed and gone."""
    snapshot = Cluster(nodes=[node("n0"), node("n1"), node("n2")]).snapshot()
    for name, where, ports, leaves in events:
        one = read_pod(pod(name, where, ports=ports))
        snapshot.put_pod(one)
        if leaves:
            snapshot.remove_pod(one.key, one.uid)
    if without:
        snapshot.remove_node("n0")
    assert_forms_agree(
        NodePorts(None, _no_handle()), make_pod(ports=wanted), snapshot.view()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ports", "where", "hint"),
    [
        ([port(80)], "n0", QueueingHint.QUEUE),
        ([port(81)], "n0", QueueingHint.SKIP),
        ([port(80)], "", QueueingHint.SKIP),
    ],
)
def test_a_pod_helps_that_had_the_port(ports: list[Json], where: str, hint: QueueingHint) -> None:
    gone, nodes = NodePorts(None, _no_handle()).events_to_register()
    assert nodes.hint is None
    assert gone.hint is not None
    left = read_pod(pod("left", where, ports=ports))
    assert gone.hint(make_pod(ports=[port(80)]), left, None) is hint


def _no_handle() -> Any:
    return None
