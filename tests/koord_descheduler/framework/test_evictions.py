"""The evictions of a round: filters, limits that end it, and what is published about each pod."""

from collections.abc import Iterator, Sequence

from koord_descheduler.framework.handle import STEPS, EvictionCandidate, PureDeschedulePlugin
from koord_descheduler.plugin import Action, ClusterNode, ClusterPod, Evictions, Handle, View
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, RecordingEvictor


class Everyone(PureDeschedulePlugin):
    """Wants all pods to leave."""

    def __init__(self, args: object, handle: Handle) -> None:
        super().__init__(handle)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        for row in rows:
            for pod in view.pods(row):
                yield EvictionCandidate(pod, "all must go")


def full_cluster() -> FakeCluster:
    cluster = FakeCluster()
    for node in ("n1", "n2"):
        cluster.node(node)
        for number in range(3):
            cluster.pod(f"{node}-{number}", node)
    return cluster


async def run(**settings: object) -> tuple[list[str], dict[str, tuple[Action, str]]]:
    """Pods that went, and what was published about each."""
    async with PluginHarness(Everyone, full_cluster(), **settings) as harness:  # type: ignore[arg-type]
        result = await harness.cycle()
        assert result.errors == []
        found = {one.pod: (one.action, one.reason) for one in harness.decisions.pods()}
        return [one.pod.name for one in harness.evicted], found


async def test_all_that_may_go_go_in_order():
    gone, found = await run()

    assert gone == [f"{node}-{number}" for node in ("n1", "n2") for number in range(3)]
    assert set(found.values()) == {(Action.EVICT, "all must go")}


async def test_a_filter_keeps_a_pod_and_says_why():
    gone, found = await run(protected=["default/n1-0"])

    assert "n1-0" not in gone
    action, reason = found["default/n1-0"]
    assert action is Action.REFUSED
    assert reason.startswith("all must go, but ")


async def test_the_limit_of_a_node_does_not_end_the_round():
    gone, found = await run(maxNoOfPodsToEvictPerNode=1)

    assert gone == ["n1-0", "n2-0"]
    assert found["default/n1-2"] == (
        Action.REFUSED, "all must go, but the limit of evictions of node n1 is reached",
    )  # fmt: skip


async def test_the_total_limit_ends_the_round():
    gone, found = await run(maxNoOfPodsToEvictTotal=2)

    assert gone == ["n1-0", "n1-1"]
    assert found["default/n2-0"] == (
        Action.REFUSED, "all must go, but the limit of evictions of this cycle is reached",
    )  # fmt: skip


async def test_the_filter_before_an_eviction_is_asked():
    """As Kubernetes' plugins expect; Koordinator asks the other filter once more there."""

    class Picky(RecordingEvictor):
        def pre_eviction_filter(self, pod: ClusterPod) -> bool:
            return pod.node == "n2"

    cluster = full_cluster()
    async with PluginHarness(Everyone, cluster) as harness:
        [profile] = harness._profiles
        profile._path.filters = (Picky(None, profile.handle),)
        await harness.cycle()

        assert {one.pod.node for one in harness.evicted} == {"n2"}
        [kept] = [one for one in harness.decisions.pods() if one.pod == "default/n1-0"]
        assert kept.action is Action.REFUSED
        assert "do not let it go now" in kept.reason


async def test_what_was_decided_is_published_even_when_a_round_fails():
    class Fails(Everyone):
        async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
            with Evictions(self._handle, self.name) as evictions:
                evictions.findings.node("n1", "odd", "it looks odd")
                raise ValueError("no")

    async with PluginHarness(Fails, full_cluster()) as harness:
        assert (await harness.cycle()).errors
        assert [one.verdict for one in harness.decisions.nodes()] == ["odd"]


async def test_a_limit_ends_the_planning_too():
    """A plan is made a few steps at a time."""
    made = 0

    class Plans(Everyone):
        async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
            nonlocal made
            pods = self._handle.services.cluster.pods_of_node("n1")

            def plan() -> Iterator[ClusterPod]:
                nonlocal made
                for number in range(10 * STEPS):
                    made += 1
                    yield pods[number % len(pods)]

            with Evictions(self._handle, self.name) as evictions:
                async for pod in evictions.steps(plan()):
                    await evictions.evict(pod, "it is in the plan")

    async with PluginHarness(Plans, full_cluster(), maxNoOfPodsToEvictTotal=2) as harness:
        assert (await harness.cycle()).errors == []
        assert len(harness.evicted) == 2
    assert made == STEPS


async def test_pods_that_may_go():
    class Chooses(Everyone):
        async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
            pods = self._handle.services.cluster.pods_of_node("n1")
            with Evictions(self._handle, self.name) as evictions:
                for pod in await evictions.those_that_may_go(pods, "why not"):
                    evictions.findings.pod(pod, Action.STAY, "chosen")

    async with PluginHarness(Chooses, full_cluster(), protected=["default/n1-1"]) as harness:
        await harness.cycle()
        found = {one.pod: one.action for one in harness.decisions.pods()}
    assert found == {
        "default/n1-0": Action.STAY,
        "default/n1-1": Action.REFUSED,
        "default/n1-2": Action.STAY,
    }
