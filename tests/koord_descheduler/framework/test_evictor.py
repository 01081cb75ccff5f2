"""Evictions through the proxy: filters, limits, dry-run, attribution, failures."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from koord.cluster.facts import ClusterNode, ClusterPod
from koord_descheduler.framework.evictor import eviction_reason
from koord_descheduler.framework.interfaces import EvictOptions, EvictPlugin, FilterPlugin, Status
from tests.support.descheduler.framework import NODES, Both, Kit, Recording, make_pod


class NoWeb(FilterPlugin):
    """Lets everything pass that is not called web, and in the end nothing of namespace late."""

    def __init__(self, args: object, handle: object) -> None:
        self.asked: list[str] = []

    def filter(self, pod: ClusterPod) -> bool:
        self.asked.append(pod.name)
        if pod.name == "bad":
            raise ValueError("bad pod")
        return pod.name != "web"

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        return pod.namespace != "late"


async def test_all_filters_must_agree_in_order_and_one_that_fails_does_not(kit: Kit) -> None:
    """The second is not asked about what the first rejects."""
    kit.add("NoWeb", NoWeb)
    profile = await kit.profile(filter=("Evict", "NoWeb"))
    evictor = profile.handle.evictor()

    assert evictor.filter(make_pod("db"))
    assert not evictor.filter(make_pod("web"))
    assert not evictor.filter(make_pod("bad"))
    assert not evictor.filter(make_pod("db", namespace="kube-system"))
    [no_web] = kit.made["NoWeb"]
    assert isinstance(no_web, NoWeb)
    assert no_web.asked == ["db", "web", "bad"]


async def test_a_filter_gives_its_reason_for_people(kit: Kit) -> None:
    """The first that refuses; one that has no words of its own is named."""

    class Worded(NoWeb):
        def reject_reason(self, pod: ClusterPod) -> str:
            return "it is called web" if pod.name == "web" else ""

    kit.add("NoWeb", NoWeb)
    kit.add("Worded", Worded)
    profile = await kit.profile(filter=("Evict", "Worded", "NoWeb"))
    evictor = profile.handle.evictor()

    assert evictor.reject_reason(make_pod("db")) == ""
    assert evictor.reject_reason(make_pod("web")) == "it is called web"
    system = make_pod("db", namespace="kube-system")
    assert evictor.reject_reason(system) == "Evict does not let it be evicted"
    assert evictor.reject_reason(make_pod("bad")) == "Worded failed: ValueError('bad pod')"


async def test_a_combined_evictor_without_a_pre_eviction_filter_lets_everything_pass(
    kit: Kit,
) -> None:
    """As Koordinator's public guide describes them; filters beside it count."""
    kit.add("NoWeb", NoWeb)
    alone = (await kit.profile("alone")).handle.evictor()
    both = (await kit.profile("both", filter=("Evict", "NoWeb"))).handle.evictor()

    assert issubclass(Recording, EvictPlugin | FilterPlugin)
    late = make_pod(namespace="late")
    assert alone.pre_eviction_filter(late)
    assert not both.pre_eviction_filter(late)
    assert alone.pre_eviction_filter(make_pod(namespace="kube-system"))


async def test_without_filter_plugins_every_pod_passes(kit: Kit) -> None:
    """A profile may have none."""
    evictor = (await kit.profile(filter=())).handle.evictor()

    assert evictor.filter(make_pod(namespace="kube-system"))
    assert evictor.pre_eviction_filter(make_pod())


async def test_what_options_leave_out_is_that_of_the_running_plugin(kit: Kit) -> None:
    """Name and reason; options that have them win."""
    evicted: list[tuple[str, EvictOptions]] = []

    async def act(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        evictor = plugin.handle.evictor()
        with eviction_reason("node is hot"):
            await evictor.evict(make_pod("one"))
            await evictor.evict(make_pod("two"), EvictOptions(plugin_name="X", reason="mine"))
        await evictor.evict(make_pod("three"), EvictOptions(delete_options={"dryRun": ["All"]}))

    profile = await kit.profile(
        balance=("A",), args={"A": {"balance": act}, "Evict": {"evicted": evicted}}
    )
    assert (await profile.run_balance_plugins(NODES)).ok

    assert evicted == [
        ("one", EvictOptions(plugin_name="A", reason="node is hot")),
        ("two", EvictOptions(plugin_name="X", reason="mine")),
        ("three", EvictOptions(plugin_name="A", delete_options={"dryRun": ["All"]})),
    ]
    assert profile.evictions == {"A": 2, "X": 1}
    labels = {"result": "success", "namespace": "default", "node": "n1"}
    assert kit.sample("descheduler_pods_evicted", strategy="A", **labels) == 2


@pytest.mark.parametrize("name", ["refused", "raises"])
async def test_an_eviction_that_fails_is_not_counted(name: str) -> None:
    """The room that it took is free again, and the caller gets False."""
    kit = Kit(total=1)
    evictor = (await kit.profile()).handle.evictor()

    assert not await evictor.evict(make_pod(name))
    assert evictor.total_evicted == 0
    assert await evictor.evict(make_pod("web"))
    assert not await evictor.evict(make_pod("db"))
    assert kit.sample("descheduler_evictions_denied_total", limit="total") == 1


async def test_evictions_under_way_take_their_room_at_once() -> None:
    """Ten at a time with a limit of three: three are carried out."""
    kit = Kit(per_node=3)
    gate = asyncio.Event()
    begun: list[str] = []

    class Slow(Recording):
        async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
            begun.append(pod.name)
            await gate.wait()
            return True

    kit.add("Slow", Slow)
    evictor = (await kit.profile(evict=("Slow",), filter=())).handle.evictor()
    tasks = [asyncio.create_task(evictor.evict(make_pod(str(number)))) for number in range(10)]
    await kit.clock.settle()
    gate.set()

    assert sum(await asyncio.gather(*tasks)) == len(begun) == 3
    assert evictor.node_limit_exceeded("n1")
    evictor.reset()
    assert evictor.total_evicted == 0


async def test_an_eviction_that_is_cancelled_keeps_its_room() -> None:
    """It may have been carried out."""
    kit = Kit(total=1)

    class Hangs(Recording):
        async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
            await asyncio.Event().wait()
            return True

    kit.add("Hangs", Hangs)
    evictor = (await kit.profile(evict=("Hangs",), filter=())).handle.evictor()
    task = asyncio.create_task(evictor.evict(make_pod()))
    await kit.clock.settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert evictor.total_evicted == 1


async def test_dry_run_is_the_profiles_and_counts_like_the_real_thing() -> None:
    """One profile only logs, the other evicts; the limits are those of the process."""
    kit = Kit(total=2)
    evicted: list[tuple[str, EvictOptions]] = []
    args = {"Evict": {"evicted": evicted}}
    dry = await kit.profile("dry", dry_run=True, args=args)
    wet = await kit.profile("wet", args=args)

    assert dry.handle.dry_run
    assert not wet.handle.dry_run
    assert await dry.handle.evictor().evict(make_pod("planned"))
    assert await wet.handle.evictor().evict(make_pod("real"))
    assert not await wet.handle.evictor().evict(make_pod("denied"))
    assert [name for name, _ in evicted] == ["real"]


async def test_a_round_that_is_over_evicts_no_more(kit: Kit) -> None:
    """What it has left running is no plugin's any more."""
    left: list[asyncio.Task[bool]] = []

    async def act(plugin: Both, nodes: Sequence[ClusterNode]) -> Status:
        async def later() -> bool:
            await kit.clock.sleep(60.0)
            return await plugin.handle.evictor().evict(make_pod())

        left.append(asyncio.create_task(later()))
        return Status()

    profile = await kit.profile(balance=("A",), args={"A": {"balance": act}})
    assert (await profile.run_balance_plugins(NODES)).ok
    await kit.clock.advance(60.0)

    assert await left[0] is False
    assert not profile.evictions


async def test_pods_of_a_node_are_those_that_have_not_ended(kit: Kit) -> None:
    """Through the handle, with the plugin's own filter."""
    kit.place(
        make_pod("a"),
        make_pod("b", phase="Failed"),
        make_pod("c"),
        make_pod("d", node="n2"),
    )
    handle = (await kit.profile()).handle

    assert [pod.name for pod in handle.list_pods_on_node("n1")] == ["a", "c"]
    assert [pod.name for pod in handle.list_pods_on_node("n1", lambda pod: pod.name > "a")] == ["c"]


class OneAtATime:
    """A gate that lets no second pod go while one has gone, and writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, bool]] = []
        self.gone = ""

    def reject_reason(
        self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool
    ) -> str:
        return f"{self.gone} is gone already" if self.gone else ""

    def noted(self, pod: ClusterPod, options: EvictOptions, now: float, *, dry_run: bool) -> None:
        self.heard.append(("noted", pod.name, dry_run))
        self.gone = pod.name

    def undone(self, pod: ClusterPod) -> None:
        self.heard.append(("undone", pod.name, False))
        self.gone = ""


@pytest.mark.parametrize("dry_run", [False, True])
async def test_the_gate_is_asked_before_the_limits(dry_run: bool) -> None:
    """What it refuses takes no room, is counted, and is among the decisions with its reason."""
    kit, gate = Kit(total=2), OneAtATime()
    kit.services = replace(kit.services, gate=gate)
    evictor = (await kit.profile(dry_run=dry_run)).handle.evictor()
    kit.decisions.begin(kit.clock.wall())

    assert await evictor.evict(make_pod("web"))
    assert evictor.gate_reject_reason(make_pod("db"), EvictOptions()) == "web is gone already"
    assert not await evictor.evict(make_pod("db"))
    assert evictor.total_evicted == 1
    assert gate.heard == [("noted", "web", dry_run)]
    assert kit.sample("descheduler_evictions_denied_total", limit="ledger") == 1
    refused = [one for one in kit.decisions.cycles[-1].pods() if one.pod == "default/db"]
    assert [(one.action.value, one.reason) for one in refused] == [
        ("refused", "web is gone already")
    ]


async def test_the_gate_is_notified_before_an_eviction_and_of_its_failure() -> None:
    """Of two at once the second is refused; what failed is as if it had not been."""
    kit, gate = Kit(), OneAtATime()
    kit.services = replace(kit.services, gate=gate)
    evictor = (await kit.profile()).handle.evictor()

    assert not await evictor.evict(make_pod("raises"))
    both = await asyncio.gather(evictor.evict(make_pod("web")), evictor.evict(make_pod("db")))
    assert both == [True, False]
    assert gate.heard == [
        ("noted", "raises", False),
        ("undone", "raises", False),
        ("noted", "web", False),
    ]
