"""Killing is asked for, comes last, and never against a disruption budget."""

import asyncio
import os

import pytest

from koordlet.api.eviction import EvictionOutcome
from koordlet.executor.eviction import Killing
from koordlet.executor.kill import KillRefused, PodKiller, checked_group
from koordlet.executor.worker import InlineWorker
from koordlet.host.cgroupfs import CgroupFs
from koordlet.plugin.testing import FakeHost

UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
GROUP = ("kubepods/burstable/podcrunch", "crunch")


async def test_who_is_evicted_is_not_killed(lethal, killer) -> None:
    """The Eviction API comes first, and a pod that it ends has its grace period."""
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.EVICTED
    assert killer.killed == []


async def test_who_cannot_be_evicted_is_killed_where_that_is_asked_for(lethal, killer) -> None:
    """Once, with a record, an event and Koordinator's metric; and in the node's budget."""
    lethal.api.answer(EvictionOutcome.FAILED, message="500 InternalError")
    eviction = await lethal.evict("crunch")
    again = await lethal.evict("crunch")

    assert (eviction.outcome, eviction.accepted) == (EvictionOutcome.KILLED, True)
    assert again.outcome is EvictionOutcome.UNDER_WAY
    assert killer.killed == [GROUP]
    [decision] = lethal.decisions.explain()
    assert decision["message"] == "500 InternalError; 3 processes killed"
    [event] = lethal.api.events
    assert event.reason == "evictPodSuccess"
    assert event.message.endswith("(500 InternalError; 3 processes killed)")
    assert lethal.count("killed") == lethal.budget.used == 1
    value = lethal.registry.get_sample_value
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1


async def test_nobody_is_killed_unless_it_is_asked_for(bench) -> None:
    """Neither at once, nor when an accepted eviction is ignored."""
    bench.api.answer(EvictionOutcome.FAILED)
    assert (await bench.evict("crunch")).outcome is EvictionOutcome.FAILED
    assert (await bench.insist("crunch")).outcome is EvictionOutcome.IGNORED
    assert bench.count("ignored") == 1


@pytest.mark.parametrize("no", [EvictionOutcome.REFUSED, EvictionOutcome.RATE_LIMITED])
async def test_a_429_protects_from_being_killed(lethal, killer, no) -> None:
    """Also later, when the server fails in another way: the budget is still there."""
    lethal.api.answer(no)
    assert (await lethal.evict("crunch")).outcome is no
    await lethal.clock.advance(600)
    lethal.api.answer(EvictionOutcome.FAILED)
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.FAILED
    assert (await lethal.insist("crunch")).outcome is EvictionOutcome.IGNORED
    assert killer.killed == []


async def test_a_pod_without_processes_is_gone(lethal, killer) -> None:
    """It is no eviction of ours."""
    killer.processes = 0
    lethal.api.answer(EvictionOutcome.FAILED)
    eviction = await lethal.evict("crunch")
    assert (eviction.outcome, eviction.accepted) == (EvictionOutcome.GONE, False)
    assert eviction.message == "no process is in its cgroup"


@pytest.mark.parametrize("answer", [EvictionOutcome.GONE, EvictionOutcome.NOT_ALLOWED])
async def test_other_answers_are_no_reason_to_kill(lethal, killer, answer) -> None:
    """Somebody else has its name, or an admission policy protects it."""
    lethal.api.answer(answer)
    assert (await lethal.evict("crunch")).outcome is answer
    assert killer.killed == []


async def test_in_dry_run_nobody_is_killed(lethal, killer) -> None:
    """Neither at first nor at last."""
    lethal.dry_run.add("MemoryEvict")
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.WOULD_EVICT
    assert (await lethal.insist("crunch")).outcome is EvictionOutcome.IGNORED
    assert killer.killed == []


async def test_who_ignores_an_eviction_is_killed(lethal, killer) -> None:
    """It counts as one pod that has ended, and once in the budget."""
    await lethal.evict("crunch")
    assert (await lethal.insist("crunch")).outcome is EvictionOutcome.KILLED
    assert killer.killed == [GROUP]
    assert lethal.budget.used == 1
    value = lethal.registry.get_sample_value
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.UNDER_WAY


async def test_the_budget_holds_for_killing(lethal, killer) -> None:
    """Also while the answer of a server that failed holds, in which time it is not asked."""
    lethal.limit = 1
    lethal.api.answer(EvictionOutcome.FAILED)
    lethal.api.answer(EvictionOutcome.FAILED)
    killer.error = "2 processes have not ended after SIGKILL"
    first = await lethal.evict("crunch")
    assert (first.outcome, first.message[-10:]) == (EvictionOutcome.FAILED, "er SIGKILL")
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.OVER_BUDGET
    assert len(killer.killed) == len(lethal.api.asked) == 1


@pytest.mark.parametrize(
    "group",
    [
        "",
        f"pod{UID}",
        "kubepods",
        "kubepods/burstable",
        "kubepods/burstable/podother",
        f"kubepods/pod{UID}/..",
        f"kubepods//pod{UID}",
        f"/kubepods/pod{UID}",
        f"kubepods/pod{UID}/c1",
    ],
)
def test_only_the_cgroup_of_that_pod_is_killed(group) -> None:
    """Above all none that holds more."""
    with pytest.raises(KillRefused, match="wanted the cgroup of"):
        checked_group(group, UID)


@pytest.mark.parametrize(
    "group",
    [
        f"kubepods/burstable/pod{UID}",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_both_drivers_name_pods_cgroups(group) -> None:
    assert checked_group(group, UID) == group


async def test_what_cannot_be_killed_is_told(tmp_path, clock) -> None:
    """Of processes outside of our pid namespace the kernel shows only zeros."""
    host = FakeHost(tmp_path, version=1)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(0, 0)
    killer = PodKiller(CgroupFs(host.paths.cgroup), InlineWorker(), clock)

    killing = asyncio.ensure_future(killer.kill(pod.group.path, "u1"))
    await clock.advance(10)

    assert "host's pid namespace" in (await killing).error
    assert await killer.kill("kubepods/podgone", "gone") == Killing(0)
    assert "wanted the cgroup" in (await killer.kill("kubepods", "u1")).error


async def test_koordlet_does_not_kill_itself(tmp_path, clock) -> None:
    """Not even when it is told to, and not the others in its pod either."""
    host = FakeHost(tmp_path, version=1)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(os.getpid())
    killer = PodKiller(CgroupFs(host.paths.cgroup), InlineWorker(), clock)

    assert await killer.kill(pod.group.path, "u1") == Killing(
        0, "this is the pod of koordlet itself"
    )
