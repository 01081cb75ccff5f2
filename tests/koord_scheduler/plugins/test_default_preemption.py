"""Where DefaultPreemption makes room, and why it does not."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.status import Code, Status
from koord_scheduler_plugins.default_preemption import DefaultPreemptionArgs
from koord_scheduler_plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from tests.support.scheduler.framework import PlainFilter
from tests.support.scheduler.preemption import World, leaving, pending

HOST = "kubernetes.io/hostname"


async def world(**nodes: list[tuple[int, int]]) -> World:
    """Nodes of four cores, each with pods of so many cores and such a priority."""
    found = await World().build()
    for name, pods in nodes.items():
        found.cluster.node(name, cpu=4)
        for at, (cpu, priority) in enumerate(pods):
            found.cluster.pod(f"{name}{at}", name, cpu=cpu, priority=priority)
    return found


async def test_the_pod_is_nominated_to_the_node_that_costs_least() -> None:
    """Of the nodes whose pods of lower priority can leave; no other pod is touched."""
    here = await world(a=[(4, 3)], b=[(2, 1), (2, 20)], c=[(2, 2), (2, 2)], d=[(4, 10)])
    new = here.cluster.pod("new", cpu=2, priority=10, phase="Pending")
    result = await here.try_pod(new)
    assert (result.nominated_node, result.status.ok) == ("b", True)
    async with here.leading():
        assert here.deleted() == ["b0"]


async def test_with_no_victims_that_help_the_diagnosis_says_why() -> None:
    """In kube-scheduler's words, as part of the event FailedScheduling."""
    here = await World().build(Picky=PlainFilter({"d": Status.unresolvable("never")}))
    for name, cpu, priority in (("a", 4, 20), ("b", 3, 20), ("b", 1, 1), ("d", 4, 1)):
        if here.view().row(name) is None:
            here.cluster.node(name, cpu=4 if name != "d" else 8)
        here.cluster.pod(f"{name}{priority}", name, cpu=cpu, priority=priority)
    result = await here.try_pod(pending())
    assert result.nominated_node == ""
    assert result.status == Status.unschedulable(
        "preemption: 0/3 nodes are available: 1 Insufficient cpu, 1 No preemption victims found "
        "for incoming pod, 1 Preemption is not helpful for scheduling."
    ).of("DefaultPreemption")


async def test_the_loop_has_a_turn_before_the_first_node_is_tried() -> None:
    """What all nodes have of pods, and what they lack without these, are steps of their own."""
    here = await world(a=[(4, 20)], b=[(4, 20)])
    without_dry_run = await turns_of_the_loop(here, pending(preemptionPolicy="Never"))
    assert await turns_of_the_loop(here, pending()) >= without_dry_run + 3


async def turns_of_the_loop(here: World, pod: ClusterPod) -> int:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await here.try_pod(pod)
    task.cancel()
    return turns


@pytest.mark.parametrize("friend", [1, 20])
async def test_a_node_is_no_candidate_for_its_pods_of_lower_priority(friend: int) -> None:
    """As in Kubernetes, where all of those leave first: the pod has to fit without them."""
    affinity = InterPodAffinity(InterPodAffinityArgs(), None)  # type: ignore[arg-type]
    here = await World().build(pre_filter={"InterPodAffinity": affinity}, InterPodAffinity=affinity)
    here.cluster.node("a", cpu=4, labels={HOST: "a"})
    here.cluster.pod("friend", "a", cpu=1, priority=friend, labels={"app": "db"})
    here.cluster.pod("big", "a", cpu=3, priority=1)
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": HOST}
    wanted = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    result = await here.try_pod(pending(cpu=3, affinity=wanted))
    assert result.nominated_node == ("a" if friend > 10 else "")


async def test_a_pod_with_preemption_policy_never_takes_no_room() -> None:
    """The last nomination stays as it is."""
    here = await world(a=[(4, 1)])
    result = await here.try_pod(pending(preemptionPolicy="Never"))
    assert result.nominated_node is None
    assert result.status.message == "preemption: not eligible due to preemptionPolicy=Never."
    assert (await here.try_pod(pending(preemptionPolicy="PreemptLowerPriority"))).status.ok


async def test_while_victims_leave_the_nominated_node_no_more_are_chosen() -> None:
    """Unless the node will not do any more; pods that leave for other reasons do not count."""
    here = await world(a=[], b=[(4, 1)])
    new = pending()
    here.put(leaving("a0", "a"))
    here.services.nominator.nominate(new, "a")
    result = await here.try_pod(new)
    assert result.nominated_node is None
    waits = "preemption: not eligible due to a terminating pod on the nominated node."
    assert result.status.message == waits

    here.put(leaving("a0", "a", by_scheduler=False))
    assert (await here.try_pod(new)).nominated_node == "a"

    here = await World().build(Picky=PlainFilter({"a": Status.unresolvable("never")}))
    here.cluster.node("a", cpu=8)
    here.cluster.node("b", cpu=4)
    here.put(leaving("a0", "a"))
    here.cluster.pod("b0", "b", cpu=4, priority=1)
    here.services.nominator.nominate(new, "a")
    assert (await here.try_pod(new)).nominated_node == "b"


async def test_victims_that_leave_already_are_not_asked_to_again() -> None:
    """The pod is nominated to their node, and nothing is deleted."""
    here = await world(a=[])
    here.put(leaving("a0", "a", by_scheduler=False))
    assert (await here.try_pod(pending())).nominated_node == "a"
    async with here.leading():
        assert here.requests == []
    assert here.plugin.pre_enqueue(pending()) is None


async def test_room_that_others_were_nominated_to_is_not_there() -> None:
    """Those of equal or higher priority; the others have to look elsewhere."""
    here = await world(a=[(2, 1), (2, 1)], b=[(4, 3)])
    nominated_pod = here.cluster.pod("nominated", cpu=2, priority=10, phase="Pending")
    here.services.nominator.nominate(nominated_pod, "a")
    assert (await here.try_pod(pending(cpu=4))).nominated_node == "b"
    here = await world(a=[(2, 1), (2, 1)], b=[(4, 3)])
    here.services.nominator.nominate(nominated_pod, "a")
    assert (await here.try_pod(pending(cpu=2))).nominated_node == "a"


async def test_only_as_many_nodes_are_tried_as_are_enough() -> None:
    """From a place on that is the same each time for one pod, and another for others."""
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=3)
    here = await World().build(args, Asked=(asked := PlainFilter({})))
    for at in range(40):
        here.cluster.node(f"n{at}", cpu=4)
        here.cluster.pod(f"p{at}", f"n{at}", cpu=4, priority=1)
    chosen = set()
    for at in range(6):
        new = pending(f"new{at}")
        asked.asked.clear()
        first = await here.try_pod(new)
        assert len(asked.asked) == 3
        here.services.nominator.forget(new.key)
        await here.lose_leadership()
        assert (await here.try_pod(new)).nominated_node == first.nominated_node
        here.services.nominator.forget(new.key)
        await here.lose_leadership()
        chosen.add(first.nominated_node)
    assert len(chosen) > 1


async def test_the_search_goes_on_for_a_candidate_that_violates_no_budget() -> None:
    """However many that do were found."""
    args = DefaultPreemptionArgs(min_candidate_nodes_percentage=0, min_candidate_nodes_absolute=1)
    here = await World().build(args)
    here.cluster.budget("pdb", {"app": "kept"}, allowed=0)
    for at in range(8):
        here.cluster.node(f"n{at}", cpu=4)
        app = "free" if at == 5 else "kept"
        here.cluster.pod(f"p{at}", f"n{at}", cpu=4, priority=1, labels={"app": app})
    assert (await here.try_pod(pending())).nominated_node == "n5"


async def test_a_plugin_that_fails_on_a_node_leaves_the_others() -> None:
    """With no candidate at all, its error is the response."""

    class Failing(PlainFilter):
        def filter(self, state: Any, pod: Any, node: Any) -> Status | None:
            if not node.pods and node.name == "a":
                raise KeyError("weight")
            return None

    here = await World().build(Failing=Failing({}))
    for name in "ab":
        here.cluster.node(name, cpu=4)
        here.cluster.pod(f"{name}0", name, cpu=4, priority=1)
    assert (await here.try_pod(pending())).nominated_node == "b"
    here.cluster.delete("Node", "b")
    here.services.nominator.forget("default/new")
    await here.lose_leadership()
    result = await here.try_pod(pending())
    assert (result.nominated_node, result.status.code) == (None, Code.ERROR)
    assert "'weight'" in result.status.message


@pytest.mark.parametrize(
    ("percentage", "absolute", "faults"),
    [(10, 100, 0), (0, 1, 0), (100, 0, 0), (-1, 1, 1), (101, 1, 1), (1, -1, 1), (0, 0, 2)],
)
def test_arguments_are_checked(percentage: int, absolute: int, faults: int) -> None:
    """With kube-scheduler's rules."""
    args = DefaultPreemptionArgs(
        min_candidate_nodes_percentage=percentage, min_candidate_nodes_absolute=absolute
    )
    assert len(list(args.validate())) == faults


PODS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from((-5, 0, 1, 9, 10, 30))),
    max_size=10,
)


@given(PODS, st.integers(1, 4), st.sampled_from((0, 5, 10)), st.integers(0, 2))
def test_on_random_clusters_the_pod_fits_when_its_victims_have_left(
    pods: list[tuple[int, int, int]], cpu: int, priority: int, allowed: int
) -> None:
    """By plain sums; no victim has its priority, none is needless, no cheaper node is left out."""
    asyncio.run(_check_random(pods, cpu, priority, allowed))


async def _check_random(
    pods: list[tuple[int, int, int]], cpu: int, priority: int, allowed: int
) -> None:
    here = await World().build()
    here.cluster.budget("pdb", {"guarded": "1"}, allowed=allowed)
    amounts: dict[str, list[tuple[int, int, str]]] = {f"n{at}": [] for at in range(4)}
    for name in amounts:
        here.cluster.node(name, cpu=4)
    for at, (where, size, of) in enumerate(pods):
        labels = {"guarded": str(at % 2)}
        here.cluster.pod(f"p{at}", f"n{where}", cpu=size, priority=of, labels=labels)
        amounts[f"n{where}"].append((size, of, f"p{at}"))
    if any(sum(size for size, *_ in there) + cpu <= 4 for there in amounts.values()):
        return  # some node is feasible
    here.cluster.pod("new", cpu=cpu, priority=priority, phase="Pending")
    known = here.cluster.state.pod("default/new")
    assert known is not None
    result = await here.try_pod(known)
    possible = {
        name
        for name, there in amounts.items()
        if sum(size for size, of, _ in there if of >= priority) + cpu <= 4
        and any(of < priority for _, of, _ in there)
    }
    if not possible:
        assert result.nominated_node == ""
        return
    assert result.nominated_node in possible
    async with here.leading():
        victims = set(here.deleted())
    there = amounts[result.nominated_node]
    assert victims
    assert victims <= {name for _, of, name in there if of < priority}
    left = sum(size for size, _, name in there if name not in victims)
    assert left + cpu <= 4
    assert all(left + size + cpu > 4 for size, _, name in there if name in victims)
    if not allowed:
        guarded = {name for name in victims if int(name[1:]) % 2}
        free_only = any(
            sum(size for size, of, name in amounts[each] if of >= priority or int(name[1:]) % 2)
            + cpu
            <= 4
            for each in possible
        )
        assert not (guarded and free_only)
