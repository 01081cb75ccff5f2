"""Usage and classes of nodes: columns against a plain form, node by node."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from koord_descheduler.plugin.testing import make_report
from koord_descheduler_plugins.low_node_load.args import (
    BASE,
    AggregationType,
    LowNodeLoadArgs,
    Planner,
)
from koord_descheduler_plugins.low_node_load.plan import NODE_CLASSES, PoolPlan
from koord_descheduler_plugins.low_node_load.usage import (
    Amount,
    NodeUsage,
    RoundInputs,
    aggregated,
    exact_usage,
    koordinator_usage,
)
from tests.support.descheduler.random_load import (
    RandomNode,
    RandomPod,
    inputs_of,
    random_args,
    random_nodes,
    report_of,
    round_of,
)

MIB = 1 << 20
NODE_MEMORY = 64 << 30


def is_prod(pod: Any) -> bool:
    return bool(pod.priority == 9500)


def plain_koordinator(node: RandomNode) -> tuple[list[int], list[int]]:
    """System and all entries; pods that have not ended."""
    there = [pod for pod in node.pods if pod.phase == "Running"]
    cpu = node.system + node.ghost + sum(pod.cpu or 0 for pod in node.pods)
    memory = bool(node.ghost) + sum(pod.memory for pod in node.pods if pod.cpu is not None)
    prod = [pod for pod in there if pod.prod]
    measured = [pod for pod in prod if pod.cpu is not None]
    return [cpu, memory * MIB, len(there)], [
        sum(pod.cpu or 0 for pod in measured),
        sum(pod.memory for pod in measured) * MIB,
        len(prod),
    ]


def plain_exact(node: RandomNode) -> tuple[list[int], list[int]]:
    """System, host applications, and the entries of pods that stay."""

    def total(pods: list[RandomPod]) -> list[int]:
        return [
            sum(pod.cpu or 0 for pod in pods),
            sum(0 if pod.cpu is None else pod.memory for pod in pods) * MIB,
            len(pods),
        ]

    cpu, memory, count = total(staying(node))
    return [cpu + node.system + node.host, memory, count], total(
        [pod for pod in staying(node) if pod.prod]
    )


def plain_in_transit(node: RandomNode) -> tuple[list[int], list[int]]:
    """Requests of pods that have no entry, and entries of those that are being deleted."""

    def total(*, prod: bool) -> list[int]:
        fresh = [pod for pod in staying(node) if pod.cpu is None and pod.prod >= prod]
        leaving = [
            pod for pod in node.pods if pod.phase == "Running" and pod.deleting and pod.prod >= prod
        ]
        return [
            sum(pod.request for pod in fresh) + sum(pod.cpu or 0 for pod in leaving),
            sum(pod.memory for pod in leaving if pod.cpu is not None) * MIB,
            len(leaving),
        ]

    return total(prod=False), total(prod=True)


def staying(node: RandomNode) -> list[RandomPod]:
    return [pod for pod in node.pods if pod.phase == "Running" and not pod.deleting]


def sizes(nodes: list[RandomNode]) -> dict[str, list[int]]:
    return {one.name: [one.cores * 1000, NODE_MEMORY, 110] for one in nodes}


@given(random_nodes())
def test_usage(nodes: list[RandomNode]) -> None:
    """Of both planners; a second time, from the book, it is the same."""
    inputs, args = inputs_of(nodes), LowNodeLoadArgs()
    for count, plain in ((koordinator_usage, plain_koordinator), (exact_usage, plain_exact)):
        found, usage_cache = count(inputs, args, BASE, {}, is_prod)
        again, _ = count(inputs, args, BASE, usage_cache, is_prod)
        expected = {one.name: plain(one) for one in nodes}
        for node_usage in (found, again):
            for name, usage, prod in zip(
                node_usage.names,
                node_usage.usage.tolist(),
                node_usage.prod_usage.tolist(),
                strict=True,
            ):
                assert (usage, prod) == expected[name]
        absurd = {one.name for one in nodes if plain(one)[0][0] > 4000 * one.cores}
        left_out = absurd if count is exact_usage else set()
        assert set(found.names) == {one.name for one in nodes} - left_out


@given(random_nodes())
def test_what_is_in_transit(nodes: list[RandomNode]) -> None:
    """It takes room, but is no usage."""
    node_usage = usage_of(inputs_of(nodes))
    expected = {one.name: plain_in_transit(one) for one in nodes}
    for at, name in enumerate(node_usage.names):
        found = node_usage.in_transit[at].tolist(), node_usage.prod_in_transit[at].tolist()
        assert found == expected[name]


def plain_class(plan: PoolPlan, place: int, *, exact: bool) -> str:
    """The table of spec 06 §5.5, and that of exact, for one node."""
    node_usage, limits = plan.node_usage, plan.limits
    columns = range(len(node_usage.resources))

    def over(usage: Any, bounds: Any, judged: Any) -> bool:
        return any(judged[at] and usage[at] > bounds[at] for at in columns)

    usage, prod = plan.usage[place], plan.prod_usage[place]
    every = [True for _ in columns]
    low_judged, prod_low_judged = (every, every) if exact else (limits.judged, limits.judged)
    schedulable = bool(node_usage.schedulable[place])
    high = over(usage, limits.high[place], limits.judged)
    prod_high = over(prod, limits.prod_high[place], limits.prod_judged)
    low = schedulable and not over(usage, limits.low[place], low_judged)
    prod_low = schedulable and not over(prod, limits.prod_low[place], prod_low_judged)
    pool = plan.pool
    if exact:
        low = low and not high and bool(pool.high_thresholds or pool.low_thresholds)
        prod_low = prod_low and bool(pool.prod_high_thresholds or pool.prod_low_thresholds)
    if not low and high:
        return "high"
    if prod_high:
        return "prod high"
    if low:
        return "low and prod low" if prod_low else "low"
    return "prod low" if prod_low else "normal"


@given(random_nodes(), random_args(), random_args(Planner.KOORDINATOR))
def test_classes(nodes: list[RandomNode], exact: Any, koordinator: Any) -> None:
    """Of all nodes, by any thresholds."""
    inputs = inputs_of(nodes)
    for args in (exact, koordinator):
        for plan in round_of(inputs, args).plans():
            found = [NODE_CLASSES[code].value for code in plan.classes.tolist()]
            assert found == [
                plain_class(plan, place, exact=args is exact) for place in range(len(found))
            ]


def usage_of(inputs: RoundInputs, **given: Any) -> NodeUsage:
    return exact_usage(inputs, LowNodeLoadArgs(**given), BASE, {}, is_prod)[0]


def with_p95(mean: int, p95: int | None, window: str = "5m0s") -> RoundInputs:
    """A node whose pod uses 1000m of so much, with a percentile of the whole."""
    node = RandomNode("n", 10, [RandomPod("p", 1000, 0, 100, prod=True)], system=mean - 1000)
    usage = {"cpu": f"{mean}m", "memory": "0"}
    report = make_report(
        "n",
        at=1_700_000_000.0,
        usage=usage,
        system={"cpu": f"{mean - 1000}m", "memory": "0"},
        pods={"default/p": {"cpu": "1000m", "memory": "0"}},
        p95=None if p95 is None else {"cpu": f"{p95}m", "memory": "0"},
        window=window,
    )
    if p95 is None:
        report = replace(report, aggregated=())
    return replace(inputs_of([node]), reports={"n": report})


@pytest.mark.parametrize(
    ("p95", "args", "cpu"),
    [
        (9000, {}, 4000),
        (9000, {"usage_aggregation_type": AggregationType.P95}, 9000),
        (9000, {"usage_aggregation_type": AggregationType.AVG}, 4000),
        (None, {"usage_aggregation_type": AggregationType.P95}, 4000),
        (
            9000,
            {
                "usage_aggregation_type": AggregationType.P95,
                "usage_aggregation_duration": 300.0,
            },
            9000,
        ),
        (
            9000,
            {
                "usage_aggregation_type": AggregationType.P95,
                "usage_aggregation_duration": 600.0,
            },
            4000,
        ),
    ],
)
def test_the_figure_that_is_asked_for(p95: int | None, args: Any, cpu: int) -> None:
    """Without it, as while a window is cold, the mean."""
    assert usage_of(with_p95(4000, p95), **args).usage[0, 0] == cpu


def test_the_shortest_window_that_has_the_figure() -> None:
    reports = [with_p95(4000, p95, window) for p95, window in ((2000, "10m0s"), (1000, "5m0s"))]
    windows = [one for each in reports for one in each.reports["n"].aggregated]
    found = aggregated(windows, AggregationType.P95, None)
    assert found is not None
    assert found == (Amount(1000, 0), 300.0)


def test_only_what_has_changed_is_added_up() -> None:
    """A node whose report and pods are the same keeps its sums; one that is gone is forgotten."""
    nodes = [RandomNode(name, 10, [], system=500) for name in ("a", "b", "c")]
    inputs = inputs_of(nodes)
    _, usage_cache = exact_usage(inputs, LowNodeLoadArgs(), BASE, {}, is_prod)
    reports = {**inputs.reports, "b": report_of(nodes[1])}
    del reports["c"]
    _, after = exact_usage(
        replace(inputs, reports=reports), LowNodeLoadArgs(), BASE, usage_cache, is_prod
    )
    assert after["a"] is usage_cache["a"]
    assert after["b"] is not usage_cache["b"]
    assert after.keys() == {"a", "b"}
