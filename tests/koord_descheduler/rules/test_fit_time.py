"""What NodeFit may take for the pods of a namespace in a cycle."""

import asyncio
from collections.abc import Callable

import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.timebudget import OutOfTime, in_time
from koord_descheduler.rules.nodefit import (
    CUT,
    NAMESPACE_SECONDS,
    POD_SECONDS,
    FitTime,
    NodeFit,
    NodeFitResult,
    fit_time,
    nodes_matching,
)
from tests.support.clusters import Cluster, expression, node, node_affinity, pod


class Looking:
    """Seconds of CPU: each look at them costs some."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.now = 0.0
        self.seconds = seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def costly(name: str, namespace: str, terms: int = 2000) -> object:
    """A pod with many terms of node affinity, each of its own."""
    labels = [expression("disk", "In", f"{name}-{number}") for number in range(terms)]
    rules = [{"matchExpressions": [one]} for one in labels]
    return pod(name, "a", namespace=namespace, affinity=node_affinity(*rules))


def placed(*pods: object) -> tuple[View, dict[str, ClusterPod]]:
    view = Cluster(nodes=[node("a"), node("b")], pods=list(pods)).snapshot().view()
    return view, {one.name: one for one in view.pods(view.row("a") or 0)}


def asker(view: View) -> Callable[[ClusterPod], NodeFitResult]:
    fit = NodeFit()
    return lambda one: fit.elsewhere(one, view, nodes_matching(view, None))


def test_a_pod_whose_rules_take_too_long_fits_nowhere_and_says_so() -> None:
    """Neither others of its namespace nor other namespaces are concerned."""
    view, pods = placed(
        costly("slow", "bad"), pod("plain", "a", namespace="bad"), pod("other", "a", namespace="ok")
    )
    ask, time = asker(view), FitTime(Looking(POD_SECONDS / 20))
    with time.in_force():
        slow = ask(pods["slow"])
        assert (slow.any, slow.cut, slow.reason, slow.names(view)) == (False, True, CUT, ())
        assert ask(pods["plain"]).names(view) == ("b",)
        assert ask(pods["other"]).names(view) == ("b",)
    assert time.cut == {"bad": 1}


def test_an_equal_pod_is_not_computed_again() -> None:
    view, pods = placed(costly("slow", "bad"))
    looking = Looking(POD_SECONDS / 20)
    ask = asker(view)
    with FitTime(looking).in_force():
        ask(pods["slow"])
        before = looking.now
        assert ask(pods["slow"]).cut
        assert looking.now == before


def test_all_pods_of_a_namespace_together_have_a_limit() -> None:
    """Whatever their number; then each has only what ordinary pods need."""
    names = [f"slow-{number}" for number in range(40)]
    view, pods = placed(*(costly(name, "bad") for name in names))
    looking = Looking(POD_SECONDS / 20)
    ask, time = asker(view), FitTime(looking)
    with time.in_force():
        for name in names:
            assert ask(pods[name]).cut
    looks_of_the_last_ones = 4 * looking.seconds  # begin, one look, and two at the end
    assert looking.now < NAMESPACE_SECONDS + POD_SECONDS + len(names) * looks_of_the_last_ones
    assert time.cut == {"bad": 40}


def test_many_usual_pods_are_never_cut() -> None:
    """What is below 20 ms does not count, however many they are."""
    looking = Looking(0.001)
    time = FitTime(looking)
    for _ in range(10_000):
        with time.of_pod_in("busy"):
            for _ in in_time(range(100)):
                pass
    assert time.cut == {}


async def test_it_is_in_force_in_tasks_and_threads() -> None:
    """Plugins run in tasks, and plan in worker threads."""
    time = FitTime(Looking(POD_SECONDS))

    def plan() -> None:
        with fit_time().of_pod_in("bad"):
            for _ in in_time(range(100)):
                pass

    async def run() -> None:
        with pytest.raises(OutOfTime):
            await asyncio.to_thread(plan)

    with time.in_force():
        await asyncio.create_task(run())
    assert time.cut == {"bad": 1}
