"""Killing is asked for, comes last, and only where no disruption budget can be against it."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from koord.api.eviction import EvictionOutcome
from koordlet.executor.evictions.eviction import KillResult
from koordlet.executor.evictions.kill import KillRefused, PodKiller, check_group
from koordlet.executor.evictions.limits import MAX_ACCEPTED_ENTRIES
from koordlet.executor.kernel.view import InlineWorker
from koordlet.host.host import Host
from koordlet.host.resources import CGROUP_PROCS
from koordlet.plugin.testing import FakeHost

UID = "7712555c-ce62-454a-9e18-9ff0217b8941"
GROUP = ("kubepods/burstable/podcrunch", "crunch")
GRACE = 30  # seconds that a pod gets by default


async def test_who_is_evicted_is_not_killed(lethal, killer) -> None:
    """The Eviction API comes first, and a pod that it ends has its grace period."""
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.EVICTED
    assert killer.killed == []


async def test_without_an_api_server_pods_are_killed_where_that_is_asked_for(alone, killer) -> None:
    """Once, with a record and Koordinator's metric; and in the node's budget."""
    eviction = await alone.evict("crunch")
    again = await alone.evict("crunch")

    assert (eviction.outcome, eviction.accepted) == (EvictionOutcome.KILLED, True)
    assert again.outcome is EvictionOutcome.UNDER_WAY
    assert killer.killed == [GROUP]
    [decision] = alone.decisions.explain()
    assert decision["message"] == "standalone: there is no API server; 3 processes killed"
    assert alone.count("killed") == alone.budget.used == 1
    value = alone.registry.get_sample_value
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1


async def test_no_pod_is_killed_unless_the_flag_says_so(bench) -> None:
    """Not even when an accepted eviction is ignored."""
    await bench.evict("crunch")
    await bench.clock.advance(GRACE)
    assert (await bench.kill_overdue("crunch")).outcome is EvictionOutcome.IGNORED
    assert bench.count("ignored") == 1


NO = [
    (EvictionOutcome.FAILED, "400 BadRequest"),
    (EvictionOutcome.FAILED, "401 Unauthorized"),
    (EvictionOutcome.NOT_ALLOWED, "403 Forbidden"),
    (EvictionOutcome.GONE, "404 NotFound"),
    (EvictionOutcome.FAILED, "409 Conflict: the object has been modified"),
    (EvictionOutcome.GONE, "409 Conflict: the UID in the precondition does not match"),
    (EvictionOutcome.FAILED, "422 Invalid"),
    (EvictionOutcome.REFUSED, "429 TooManyRequests: the budget needs 2 healthy pods"),
    (EvictionOutcome.RATE_LIMITED, "429 TooManyRequests"),
    (EvictionOutcome.FAILED, "500 InternalError"),
    (EvictionOutcome.REFUSED, "500: more than one PodDisruptionBudget"),
    (EvictionOutcome.FAILED, "503 ServiceUnavailable"),
    (EvictionOutcome.FAILED, "no answer of the API server that can be used (TimedOut)"),
]


@pytest.mark.parametrize(("outcome", "message"), NO)
async def test_an_answer_that_is_no_yes_kills_no_pod(lethal, killer, outcome, message) -> None:
    """Neither at once nor when a plugin insists later: a disruption budget may protect the pod."""
    lethal.api.answer(outcome, message=message, pod="jobs/crunch")
    for _ in range(3):
        assert (await lethal.evict("crunch")).outcome is outcome
        await lethal.clock.advance(600)

    insisted = await lethal.kill_overdue("crunch")
    assert insisted.outcome is EvictionOutcome.IGNORED
    assert insisted.message == "the API server has not accepted an eviction of this pod"
    assert killer.killed == []


@pytest.mark.parametrize(("outcome", "message"), NO)
async def test_the_latest_answer_counts(lethal, killer, outcome, message) -> None:
    """A pod whose eviction was accepted, and then was not, stays."""
    await lethal.evict("crunch")
    await lethal.clock.advance(600)
    lethal.api.answer(outcome, message=message)
    assert (await lethal.evict("crunch")).outcome is outcome

    assert (await lethal.kill_overdue("crunch")).outcome is EvictionOutcome.IGNORED
    assert killer.killed == []


async def test_a_yes_after_a_no_permits(lethal, killer) -> None:
    """The disruption budget has room by then."""
    lethal.api.answer(EvictionOutcome.REFUSED)
    await lethal.evict("crunch")
    await lethal.clock.advance(600)
    await lethal.evict("crunch")
    await lethal.clock.advance(GRACE)

    assert (await lethal.kill_overdue("crunch")).outcome is EvictionOutcome.KILLED


async def test_a_yes_is_about_one_pod(lethal, killer) -> None:
    """Neither another pod nor a new one of that name may be killed for it."""
    await lethal.evict("crunch")
    await lethal.clock.advance(GRACE)

    assert (await lethal.kill_overdue("sort")).outcome is EvictionOutcome.IGNORED
    assert (await lethal.kill_overdue("crunch", uid="new")).outcome is EvictionOutcome.IGNORED
    assert killer.killed == []


@pytest.mark.parametrize(("asked", "own", "grace"), [(None, 30, 30), (50, 30, 50), (5, 30, 5)])
async def test_the_grace_period_is_over_first(lethal, killer, asked, own, grace) -> None:
    """That of the eviction, else the pod's own, whatever a plugin thinks."""
    await lethal.evict("crunch", grace=asked, grace_seconds=own)
    await lethal.clock.advance(grace - 1)
    early = await lethal.kill_overdue("crunch", grace_seconds=own)
    assert (early.outcome, early.retry_after) == (EvictionOutcome.UNDER_WAY, 1.0)
    assert early.message == f"accepted; its grace period of {grace} s is not over"
    assert killer.killed == []
    await lethal.clock.advance(1)

    assert (await lethal.kill_overdue("crunch")).outcome is EvictionOutcome.KILLED


async def test_who_asks_again_does_not_begin_the_grace_period_anew(lethal, killer) -> None:
    """It ends when the pod's does."""
    await lethal.evict("crunch", grace_seconds=130)
    await lethal.clock.advance(125)
    await lethal.evict("crunch", grace_seconds=130)
    await lethal.clock.advance(5)

    assert (await lethal.kill_overdue("crunch")).outcome is EvictionOutcome.KILLED


async def test_a_deletion_that_lasts_longer_is_waited_for(lethal, killer) -> None:
    """Another client has deleted the pod before, with more time."""
    await lethal.evict("crunch")
    await lethal.clock.advance(GRACE)
    request = lethal.request("crunch")
    later = replace(request.pod, gone_by=lethal.clock.wall() + 10)
    early = await lethal.evictor.kill_overdue(replace(request, pod=later))

    assert (early.outcome, early.retry_after) == (EvictionOutcome.UNDER_WAY, 10.0)


async def test_accepted_evictions_are_remembered_within_bounds(lethal, killer) -> None:
    """The latest ones."""
    lethal.limit = 0
    for number in range(MAX_ACCEPTED_ENTRIES + 1):
        await lethal.evict(f"pod-{number}")
    await lethal.clock.advance(GRACE)

    assert (await lethal.kill_overdue("pod-0")).outcome is EvictionOutcome.IGNORED
    assert (await lethal.kill_overdue("pod-1")).outcome is EvictionOutcome.KILLED


async def test_a_pod_without_processes_is_gone(alone, killer) -> None:
    """It is no eviction of ours."""
    killer.processes = 0
    eviction = await alone.evict("crunch")
    assert (eviction.outcome, eviction.accepted) == (EvictionOutcome.GONE, False)
    assert eviction.message == "standalone: there is no API server; no process is in its cgroup"


async def test_a_pod_without_a_known_cgroup_stays(alone, killer) -> None:
    """There is nothing to kill it by."""
    eviction = await alone.evictor.evict(replace(alone.request("crunch"), cgroup=""))
    assert eviction.outcome is EvictionOutcome.FAILED
    assert eviction.message.endswith("the cgroup of the pod is not known")
    assert killer.killed == []


async def test_static_pods_are_not_killed(lethal, alone, killer) -> None:
    """The kubelet would start them again."""
    for bench in (lethal, alone):
        eviction = await bench.evict("proxy", annotations={"kubernetes.io/config.source": "file"})
        assert eviction.outcome is EvictionOutcome.NOT_ALLOWED
    assert killer.killed == []


async def test_in_dry_run_no_pod_is_killed(lethal, alone, killer) -> None:
    """Neither at first nor at last."""
    for bench in (lethal, alone):
        bench.dry_run.add("MemoryEvict")
        assert (await bench.evict("crunch")).outcome is EvictionOutcome.WOULD_EVICT
        await bench.clock.advance(GRACE)
        assert (await bench.kill_overdue("crunch")).outcome is EvictionOutcome.IGNORED
    assert killer.killed == []


async def test_who_ignores_an_eviction_is_killed(lethal, killer) -> None:
    """It counts as one pod that has ended, and once in the budget."""
    await lethal.evict("crunch")
    await lethal.clock.advance(GRACE)
    killed = await lethal.kill_overdue("crunch")
    assert killed.outcome is EvictionOutcome.KILLED
    assert killed.message == (
        "accepted, but the pod still runs after its grace period; 3 processes killed"
    )
    assert killer.killed == [GROUP]
    assert lethal.budget.used == 1
    value = lethal.registry.get_sample_value
    assert value("koordlet_pod_eviction", {"node": "n1", "reason": "evicted"}) == 1
    assert (await lethal.evict("crunch")).outcome is EvictionOutcome.UNDER_WAY


async def test_the_budget_holds_for_killing(alone, killer) -> None:
    """Some processes have ended, so it counts; and it is not tried again at once."""
    alone.limit = 1
    killer.error = "2 processes have not ended after SIGKILL"
    first = await alone.evict("crunch")
    assert (first.outcome, first.message[-10:]) == (EvictionOutcome.FAILED, "er SIGKILL")
    assert (await alone.evict("crunch")).outcome is EvictionOutcome.FAILED
    assert (await alone.evict("sort")).outcome is EvictionOutcome.OVER_BUDGET
    assert len(killer.killed) == 1


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
        check_group(group, UID)


@pytest.mark.parametrize(
    "group",
    [
        f"kubepods/burstable/pod{UID}",
        f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_both_drivers_name_pods_cgroups(group) -> None:
    check_group(group, UID)


async def test_what_cannot_be_killed_is_reported(tmp_path, clock) -> None:
    """Of processes outside of our pid namespace the kernel shows only zeros."""
    host = FakeHost(tmp_path, version=1)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(0, 0)
    killer = PodKiller(Host(host.paths), InlineWorker(), clock)

    killing = asyncio.ensure_future(killer.kill(pod.group.path, "u1"))
    await clock.advance(10)

    assert "host's pid namespace" in (await killing).error
    assert await killer.kill("kubepods/podgone", "gone") == KillResult(0)
    assert "wanted the cgroup" in (await killer.kill("kubepods", "u1")).error


async def test_koordlet_does_not_kill_itself(tmp_path, clock) -> None:
    """Not even when the caller insists, and not the others in its pod either."""
    host = FakeHost(tmp_path, version=1)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(os.getpid())
    killer = PodKiller(Host(host.paths), InlineWorker(), clock)

    assert await killer.kill(pod.group.path, "u1") == KillResult(
        0, "this is the pod of koordlet itself"
    )


async def test_the_kernel_kills_a_whole_cgroup_where_it_can(tmp_path, clock) -> None:
    """On cgroup v2: one write to cgroup.kill of the pod, and no signal."""
    host = FakeHost(tmp_path, version=2)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(0, 7)  # 0 could not be signalled
    kill = Path(Host(host.paths).path(CGROUP_PROCS, pod.group.path)).with_name("cgroup.kill")
    kill.write_text("")
    killer = PodKiller(Host(host.paths), InlineWorker(), clock)

    killing = asyncio.ensure_future(killer.kill(pod.group.path, "u1"))
    await clock.advance(1)
    pod.containers["c1"].set_processes()
    await clock.advance(1)

    assert await killing == KillResult(2)
    assert kill.read_text() == "1\n"


async def test_only_the_kernels_own_file_is_written_for_killing(tmp_path, clock) -> None:
    """As for every other value: a file of that name elsewhere is left as it is."""
    host = FakeHost(tmp_path, version=2)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(7)
    paths = replace(host.paths, laid_out=False)
    kill = Path(Host(paths).path(CGROUP_PROCS, pod.group.path)).with_name("cgroup.kill")
    kill.write_text("")

    killing = await PodKiller(Host(paths), InlineWorker(), clock).kill(pod.group.path, "u1")

    assert killing.killed == 0
    assert f"{kill}: wanted a kernel file (cgroup or cgroup2)" in killing.error
    assert kill.read_text() == ""


async def test_no_link_is_followed_for_killing(tmp_path, clock) -> None:
    """The processes are signalled one by one then."""
    host = FakeHost(tmp_path, version=2)
    pod = host.add_pod("u1")
    pod.containers["c1"].set_processes(0)
    (tmp_path / "elsewhere").write_text("")
    kill = Path(Host(host.paths).path(CGROUP_PROCS, pod.group.path)).with_name("cgroup.kill")
    kill.symlink_to(tmp_path / "elsewhere")
    killer = PodKiller(Host(host.paths), InlineWorker(), clock)

    killing = asyncio.ensure_future(killer.kill(pod.group.path, "u1"))
    await clock.advance(10)

    assert "host's pid namespace" in (await killing).error
    assert (tmp_path / "elsewhere").read_text() == ""
