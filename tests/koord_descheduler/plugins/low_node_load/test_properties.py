"""What holds for every plan of exact, on random clusters."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.hypothetical import HypotheticalCluster
from koord_descheduler.plugin import fits
from koord_descheduler_plugins.low_node_load.args import LowNodeLoadArgs
from koord_descheduler_plugins.low_node_load.plan import NODE_CLASSES, NodeClass
from tests.support.descheduler.random_load import (
    RandomNode,
    carry_out,
    inputs_of,
    node_of,
    random_args,
    random_nodes,
    round_of,
)

MIB = 1 << 20


@given(random_nodes(), random_args(), st.frozensets(st.sampled_from(("n0-p0", "n1-p1"))))
def test_no_limit_is_exceeded(
    nodes: list[RandomNode], args: LowNodeLoadArgs, refused: frozenset[str]
) -> None:
    """No target goes above a threshold, of nodes or of prod pods, nor was above one before."""
    by_name = {pod.name: pod for node in nodes for pod in node.pods}
    come: defaultdict[str, list[str]] = defaultdict(list)
    plans = {}
    for move, plan in carry_out(round_of(inputs_of(nodes), args), refused):
        assert move.pod.name not in refused
        assert move.pod.node != move.target
        come[move.target].append(move.pod.name)
        plans[move.target] = plan
    for target, names in come.items():
        plan = plans[target]
        place = plan.node_usage.names.index(target)
        assert NODE_CLASSES[plan.classes[place]] not in (
            NodeClass.OVERUTILIZED,
            NodeClass.PROD_OVERUTILIZED,
        )
        node_usage = plan.node_usage
        for prod, usage, high, judged in (
            (False, plan.usage + node_usage.in_transit, plan.limits.high, plan.limits.judged),
            (
                True,
                plan.prod_usage + node_usage.prod_in_transit,
                plan.limits.prod_high,
                plan.limits.prod_judged,
            ),
        ):
            pods = [by_name[name] for name in names if by_name[name].prod or not prod]
            more = [
                sum(pod.cpu or 0 for pod in pods),
                sum(pod.memory for pod in pods) * MIB,
                len(pods),
            ]
            after = usage[place] + np.array(more)
            assert (after <= high[place])[judged].all()


@given(random_nodes(), random_args())
def test_pods_leave_only_while_their_node_is_high(
    nodes: list[RandomNode], args: LowNodeLoadArgs
) -> None:
    """Each takes of what is too much at that time, and none leaves twice."""
    by_name = {pod.name: pod for node in nodes for pod in node.pods}
    gone: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros((2, 3), np.int64))
    seen = set()
    for move, plan in carry_out(round_of(inputs_of(nodes), args)):
        pod = by_name[move.pod.name]
        assert pod.cpu is not None
        assert not pod.deleting
        assert move.pod.name not in seen
        assert all(move.pod.name not in one.migrating for one in nodes)
        seen.add(move.pod.name)
        place = plan.node_usage.names.index(move.pod.node)
        taken = np.array([pod.cpu, pod.memory * MIB, 1])
        usage = np.stack((plan.usage[place], plan.prod_usage[place])) - gone[move.pod.node]
        high = np.stack((plan.limits.high[place], plan.limits.prod_high[place]))
        judged = np.stack((plan.limits.judged, plan.limits.prod_judged))
        assert ((usage > high) & judged & (taken > 0)).any()
        gone[move.pod.node] += np.outer((1, pod.prod), taken)


@given(random_nodes(), random_args(), st.randoms())
def test_the_order_of_the_input_does_not_matter(
    nodes: list[RandomNode], args: LowNodeLoadArgs, shuffle: "st.random.Random"
) -> None:
    """Nodes, pods and rows in another order give the same moves, to the same nodes."""

    def moves(some: list[RandomNode]) -> list[tuple[str, str, str]]:
        done = carry_out(round_of(inputs_of(some), args))
        return [(move.pod.name, move.target, move.reason) for move, _ in done]

    other = [replace(node, pods=shuffle.sample(node.pods, len(node.pods))) for node in nodes]
    shuffle.shuffle(other)

    assert moves(nodes) == moves(nodes)
    assert moves(nodes) == moves(other)


@given(random_nodes(steady=True), random_args())
def test_pods_fit_where_they_are_expected(nodes: list[RandomNode], args: LowNodeLoadArgs) -> None:
    """One after the other, by all rules of the scheduler."""
    args = replace(args, node_fit=True)
    inputs = inputs_of(nodes)
    what_if = HypotheticalCluster(inputs.view)
    rows = {node_of(one).name: inputs.view.row(one.name) for one in nodes}
    for move, _ in carry_out(round_of(inputs, args)):
        what_if.remove(move.pod.key, move.pod.node)
        assert fits(move.pod, what_if.view()).mask[rows[move.target]]
        what_if.add(move.pod, move.target)
