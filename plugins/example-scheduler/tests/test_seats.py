"""Seats: the account is right whatever becomes of pods."""

import pytest
from koord_roomy_nodes.seats import Seats

from koord_scheduler.plugin import (
    POD_DELETED,
    ClusterPod,
    CycleState,
    Handle,
    PreBindPlugin,
    Status,
)
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod

SEAT = {"example.com/seat": "1"}


class Fails(PreBindPlugin):
    """Lets no binding through."""

    def __init__(self, args: object, handle: Handle) -> None: ...

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return Status.failed("not today")


def taken(harness: PluginHarness) -> int:
    assert isinstance(harness.subject, Seats)
    return harness.subject.taken


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = fake_cluster()
    cluster.node("n1")
    cluster.pod("first", "n1", labels=SEAT)
    return cluster


async def test_pods_wait_for_a_seat(cluster: FakeCluster) -> None:
    async with PluginHarness(Seats, cluster, args={"seats": 2}) as harness:
        assert (await harness.schedule(make_pod("second", labels=SEAT))).node == "n1"
        third = make_pod("third", labels=SEAT)
        refused = await harness.schedule(third)
        assert (refused.node, refused.status.plugin) == (None, "Seats")
        assert (await harness.schedule(make_pod("other"))).node == "n1"

        cluster.delete("Pod", "default/first")
        assert (await harness.schedule(third)).node == "n1"
        assert taken(harness) == 2


async def test_a_binding_that_fails_gives_its_seat_back(cluster: FakeCluster) -> None:
    async with PluginHarness(Seats, cluster, extra_plugins={"Fails": Fails}) as harness:
        done = await harness.schedule(make_pod("second", labels=SEAT))
        assert (done.node, done.status.plugin) == (None, "Fails")
        assert taken(harness) == 1


async def test_a_pod_that_has_ended_has_no_seat(cluster: FakeCluster) -> None:
    async with PluginHarness(Seats, cluster) as harness:
        cluster.pod("first", "n1", labels=SEAT, phase="Succeeded")
        assert taken(harness) == 0


async def test_only_the_end_of_a_pod_with_a_seat_helps(cluster: FakeCluster) -> None:
    async with PluginHarness(Seats, cluster) as harness:
        waits = make_pod("waits", labels=SEAT)
        assert harness.is_retried_after(waits, POD_DELETED, make_pod("a", labels=SEAT), None)
        assert not harness.is_retried_after(waits, POD_DELETED, make_pod("b"), None)


@pytest.mark.parametrize("args", [{"label": ""}, {"seats": -1}])
def test_bad_args(args: dict[str, object]) -> None:
    with pytest.raises(Exception, match=r"label: .*wanted|seats: .*wanted"):
        PluginHarness(Seats, args=args)
