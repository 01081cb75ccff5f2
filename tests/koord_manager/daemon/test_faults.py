"""What a hostile or broken report, node or peer does to what nodes offer: nothing sudden."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from koord.kube.client import NODE_METRICS
from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer, status
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.kube.replicas import LEASES, holder
from tests.support.manager import node, pod, pod_usage, quantities, report, usage

NODES, PODS, CONFIG_MAPS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/configmaps"
METRICS = NODE_METRICS.collection()
BATCH_CPU = "kubernetes.io/batch-cpu"
STRATEGY = {
    "enable": True,
    "cpuReclaimThresholdPercent": 65,
    "memoryReclaimThresholdPercent": 65,
    "resourceDiffThreshold": 0.01,
}


def metric(
    clock: SimulatedClock, used: object, *, node_used: object = None, ahead: float = 0.0
) -> dict[str, Any]:
    """Prod uses so many cores, the system 7; the node what they do, unless it is said."""
    total = node_used if node_used is not None else used
    found = report(
        node=usage(total, "55G"), system=usage(7, "12G"), pods=[pod_usage("a", used, "33G")]
    )
    at = datetime.fromtimestamp(clock.wall() + ahead, UTC)
    found["status"]["updateTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


@pytest.fixture(autouse=True)
def cluster(server: ApiServer, clock: SimulatedClock) -> None:
    """Node n1 offers 25 cores to batch pods: 100 less a margin of 35, 7 and 33."""
    server.objects.create(NODES, node(quantities(cpu=100, memory="120G")))
    server.objects.create(PODS, pod("a", quantities(cpu=40, memory="40G"), qos="LS"))
    server.objects.create(METRICS, metric(clock, 33))
    server.objects.create(
        CONFIG_MAPS,
        {
            "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
            "data": {"colocation-config": json.dumps(STRATEGY)},
        },
    )


def batch(server: ApiServer, name: str = "n1") -> str | None:
    found: str | None = server.objects.get(NODES, name)["status"]["allocatable"].get(BATCH_CPU)
    return found


def patches(server: ApiServer, name: str = "n1") -> list[Any]:
    return [one for one in server.asked("patch") if one.path == f"{NODES}/{name}/status"]


async def settle(clock: SimulatedClock) -> None:
    for _ in range(8):
        await network_is_quiet()
        await clock.advance(0.5)


async def test_a_report_that_is_deleted_takes_the_offer(start, server, clock, pass_time):
    """The object comes back, without a status: there is nothing to believe."""
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    server.objects.delete(METRICS, "n1")
    await pass_time(lambda: batch(server) is None, step=0.5)
    await pass_time(lambda: bool(server.objects.all(METRICS)), step=0.5)

    assert replica.metric("slo_controller_nodes", state="stale") == 1
    server.objects.replace(METRICS, metric(clock, 33))
    await pass_time(lambda: batch(server) == "25k", step=0.5)


@pytest.mark.parametrize(
    ("fault", "allowed"),
    [
        ({"used": 5, "ahead": 3600}, {"25k"}),
        ({"used": 5, "node_used": 5000}, {"25k"}),
        ({"used": 5000}, {"17500"}),
        ({"used": -50}, {"18k"}),
        ({"used": -50, "node_used": 40}, {"18k"}),
        ({"used": 33, "node_used": -1}, {"25k"}),
        ({"used": "9223372036854775807"}, {"25k", "18k"}),
    ],
    ids=[
        "from the future",
        "node absurd",
        "pod absurd",
        "negative",
        "pod negative",
        "node negative",
        "huge",
    ],
)
async def test_a_report_that_cannot_be_right_raises_nothing_and_takes_a_part(
    fault, allowed, start, server, clock, let_pass, pass_time
):
    """Thirty percent at most; the next good one is believed."""
    replica = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, **fault))
    await settle(clock)
    assert batch(server) in allowed
    assert (await replica.healthz())["plugins"]["status"] == "ok"

    await let_pass(60)
    server.objects.replace(METRICS, metric(clock, 20))
    await pass_time(lambda: batch(server) == "38k", step=0.5)


async def test_a_report_from_the_future_grows_old_all_the_same(start, server, clock, pass_time):
    """From when it was seen: a clock that is ahead keeps no offer alive."""
    server.objects.replace(METRICS, metric(clock, 33, ahead=86_400))
    start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)

    began = clock.monotonic()

    await pass_time(lambda: batch(server) is None, step=2.5)

    assert 870 < clock.monotonic() - began < 1100


@pytest.mark.parametrize("size", [{}, {"cpu": "0", "memory": "0"}], ids=["none", "zero"])
async def test_a_node_without_capacity_offers_nothing_and_the_others_go_on(
    size, start, server, clock, pass_time
):
    bare = node(size)
    bare["metadata"] |= {"name": "n0", "uid": "uid-n0"}
    server.objects.create(NODES, bare)
    empty = metric(clock, 0)
    empty["metadata"] = {"name": "n0"}
    server.objects.create(METRICS, empty)
    replica = start()

    await pass_time(lambda: batch(server) == "25k", step=0.25)

    assert batch(server, "n0") in (None, "0")
    health = await replica.healthz()
    assert (health["noderesource"]["status"], health["plugins"]["status"]) == ("ok", "ok")


async def test_of_two_managers_one_writes_and_the_other_takes_over(start, server, clock, pass_time):
    first = start()
    await pass_time(lambda: bool(holder(server)), step=0.25)
    second = start()
    await pass_time(lambda: batch(server) == "25k", step=0.25)
    await settle(clock)
    assert len(patches(server)) == 1
    leader = holder(server)

    first.stop.set()
    await pass_time(lambda: holder(server) not in ("", leader), step=0.5)
    server.objects.replace(METRICS, metric(clock, 20))
    await pass_time(lambda: batch(server) == "38k", step=0.5)

    assert second.metric("slo_controller_nodes", state="enabled") == 1


async def test_leadership_that_is_lost_in_a_patch_ends_the_writing(
    start, server, clock, let_pass, pass_time
):
    """Another takes the lease while a patch fails: until its own time is up it may try again."""
    taken = asyncio.Event()

    async def refuse_when_taken(_: web.Request) -> web.StreamResponse:
        lease = server.objects.all(LEASES)[0]
        lease["spec"] |= {
            "holderIdentity": "koord-manager-7d_1",
            "renewTime": datetime.fromtimestamp(clock.wall() + 3600, UTC).strftime(
                "%Y-%m-%dT%H:%M:%S.000000Z"
            ),
        }
        server.objects.replace(LEASES, lease)
        taken.set()
        return status(500)

    server.script(refuse_when_taken, method="PATCH", path=f"{NODES}/n1/status")
    replica = start()
    await pass_time(taken.is_set, step=0.25)
    await pass_time(replica.task.done, step=1)

    sent = len(patches(server))
    assert "lost lease" in str(replica.task.exception())
    server.objects.replace(METRICS, metric(clock, 20))
    await let_pass(30)
    assert len(patches(server)) == sent
    assert batch(server) in (None, "25k")
    assert holder(server) == "koord-manager-7d_1"
