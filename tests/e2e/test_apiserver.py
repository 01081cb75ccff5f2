"""The client and its copies against Kubernetes' own storage, schemas and watches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koord.kube import errors
from koord.kube.client import (
    NODE_METRICS,
    NODE_SLOS,
    NODE_TOPOLOGIES,
    ApiClient,
    WatchEvent,
    WatchEventType,
    WatchLimits,
    field_selector,
)
from koord.kube.reflector import Change, ChangeKind, Reflector, Watched, without_managed_fields
from koord.util.clock import SystemClock
from koord.util.health import OK
from koord.util.stop import Stop
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.served import until_served

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]

STATUS = {
    "updateTime": "2026-07-24T06:52:45Z",
    "nodeMetric": {
        "nodeUsage": {"resources": {"cpu": "18100m", "memory": "34Gi"}},
        "aggregatedNodeUsages": [
            {"duration": "5m0s", "usage": {"avg": {"resources": {"cpu": "18100m"}}, "p50": {}}}
        ],
        "systemUsage": {},
        "numaUsages": [{"numaNodeID": 0, "nodeUsage": {}, "systemUsage": {}}],
    },
    "podsMetric": [
        {
            "namespace": "batch",
            "name": "etl-42",
            "priority": "koord-batch",
            "qos": "BE",
            "podUsage": {"resources": {"cpu": "5400m", "memory": "10Gi"}},
        }
    ],
    "hostApplicationMetric": [{"name": "nginx", "usage": {"resources": {"cpu": 1}}, "qos": "LS"}],
    "prodReclaimableMetric": {"resource": {}},
}


def node_metric(name: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": NODE_METRICS.api_version,
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "spec": spec or {},
    }


def node_slo(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": NODE_SLOS.api_version,
        "kind": "NodeSLO",
        "metadata": {"name": name},
        "spec": spec,
    }


def status_path(name: str) -> str:
    return NODE_METRICS.object(name, subresource="status")


@pytest.fixture
async def metric(client: ApiClient, node_name: str) -> dict[str, Any]:
    """A NodeMetric without status."""
    return await client.create(NODE_METRICS.collection(), node_metric(node_name))


async def test_a_status_is_stored_whole(client: ApiClient, node_name: str, metric) -> None:
    """What is not in the next one is not there any more; the spec is not touched."""
    uid = metric["metadata"]["uid"]
    answer = await client.replace_status(status_path(node_name), uid, STATUS)
    first = await client.get(NODE_METRICS.object(node_name))
    shorter = {key: STATUS[key] for key in ("updateTime", "nodeMetric")}
    await client.replace_status(status_path(node_name), uid, shorter)
    second = await client.get(NODE_METRICS.object(node_name))

    assert answer["kind"] == "PartialObjectMetadata", "a large status needs no way back"
    assert first["status"] == STATUS
    assert second["status"] == shorter
    assert second["spec"] == {}
    assert second["metadata"]["generation"] == metric["metadata"]["generation"]


async def test_a_status_does_not_land_on_another_object(
    client: ApiClient, node_name: str, metric
) -> None:
    """The object was deleted and made anew under the same name; then deleted for good."""
    await client.delete(NODE_METRICS.object(node_name), uid=metric["metadata"]["uid"])
    await client.create(NODE_METRICS.collection(), node_metric(node_name))

    with pytest.raises(errors.PatchRejected):
        await client.replace_status(status_path(node_name), metric["metadata"]["uid"], STATUS)
    assert "status" not in await client.get(NODE_METRICS.object(node_name))

    await client.delete(NODE_METRICS.object(node_name))
    with pytest.raises(errors.NotFound):
        await client.replace_status(status_path(node_name), metric["metadata"]["uid"], STATUS)


async def test_the_schema_names_the_field(client: ApiClient, node_name: str, metric) -> None:
    """A status of the wrong type is refused, and not as a patch that does not apply."""
    with pytest.raises(errors.Invalid, match=r"status\.updateTime") as caught:
        await client.replace_status(
            status_path(node_name), metric["metadata"]["uid"], {"updateTime": 5}
        )

    assert not isinstance(caught.value, errors.PatchRejected)


@pytest.mark.parametrize(
    "policy",
    [
        {"nodeMemoryCollectPolicy": "all"},
        {"reportIntervalSeconds": "60"},
        {"reportIntervalSeconds": 1.5},
    ],
)
async def test_a_bad_spec_is_refused(client: ApiClient, node_name: str, policy) -> None:
    """As Koordinator's own definition does."""
    with pytest.raises(errors.Invalid):
        await client.create(
            NODE_METRICS.collection(), node_metric(node_name, {"metricCollectPolicy": policy})
        )


async def test_unknown_fields_are_pruned(client: ApiClient, node_name: str, metric) -> None:
    """Except below extensions, which are anybody's."""
    pods = [{"name": "a", "extensions": {"Object": {"x": 1}}, "unknown": 1}]
    await client.replace_status(
        status_path(node_name), metric["metadata"]["uid"], {"podsMetric": pods, "unknown": 1}
    )

    stored = await client.get(NODE_METRICS.object(node_name))
    assert stored["status"] == {"podsMetric": [{"name": "a", "extensions": {"Object": {"x": 1}}}]}


async def test_an_outdated_version_is_a_conflict(client: ApiClient, node_name: str, metric) -> None:
    """And a name that is taken is a conflict of its own kind."""
    await client.merge_patch(NODE_METRICS.object(node_name), {"metadata": {"labels": {"a": "b"}}})

    stale = {"metadata": {"resourceVersion": metric["metadata"]["resourceVersion"]}, "spec": {}}
    with pytest.raises(errors.Conflict):
        await client.merge_patch(
            NODE_METRICS.object(node_name), stale | {"metadata": stale["metadata"] | {"labels": {}}}
        )
    with pytest.raises(errors.AlreadyExists):
        await client.create(NODE_METRICS.collection(), node_metric(node_name))
    with pytest.raises(errors.Conflict):
        await client.delete(NODE_METRICS.object(node_name), uid="another")


async def test_node_slo_keeps_what_koord_manager_writes(client: ApiClient, node_name: str) -> None:
    """Nothing of a full NodeSLO is pruned, and networkQOS gets its defaults."""
    spec = {
        "resourceUsedThresholdWithBE": {
            "enable": True,
            "cpuSuppressThresholdPercent": 65,
            "memoryEvictThresholdPercent": 80,
            "memoryEvictLowerPercent": 75,
            "cpuSuppressPolicy": "cpuset",
            "evictEnabledPriorityThreshold": 5999,
        },
        "resourceQOSStrategy": {
            "policies": {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"},
            "lsClass": {
                "cpuQOS": {"enable": True, "groupIdentity": 2},
                "memoryQOS": {"enable": True, "wmarkMinAdj": -25, "wmarkScalePermill": 20},
                "networkQOS": {"enable": True, "egressLimit": "10G"},
            },
            "beClass": {
                "resctrlQOS": {"enable": True, "catRangeEndPercent": 30},
                "blkioQOS": {
                    "enable": True,
                    "blocks": [
                        {"name": "/dev/sdb", "type": "device", "ioCfg": {"readIOPS": 20480}}
                    ],
                },
            },
        },
        "cpuBurstStrategy": {"policy": "auto", "cfsQuotaBurstPeriodSeconds": -1},
        "systemStrategy": {
            "minFreeKbytesFactor": 100,
            "schedFeatures": {"ID_ABSOLUTE_EXPEL": True},
            "totalNetworkBandwidth": "10G",
        },
        "extensions": {"Object": {"anything": {"at": ["all"]}}},
        "hostApplications": [
            {
                "name": "nginx",
                "priority": "koord-prod",
                "qos": "LS",
                "cgroupPath": {"base": "CgroupRoot", "relativePath": "nginx/"},
                "strategy": {},
            }
        ],
    }

    stored = await client.create(NODE_SLOS.collection(), node_slo(node_name, spec))

    network = stored["spec"]["resourceQOSStrategy"]["lsClass"]["networkQOS"]
    assert network == {
        "enable": True,
        "ingressRequest": 0,
        "ingressLimit": 100,
        "egressRequest": 0,
        "egressLimit": "10G",
    }
    spec["resourceQOSStrategy"]["lsClass"]["networkQOS"] = network
    assert stored["spec"] == spec


@pytest.mark.parametrize(
    ("strategy", "field"),
    [
        ({"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 101}}, "cpuSuppress"),
        ({"resourceUsedThresholdWithBE": {"enable": "yes"}}, "enable"),
        ({"resourceQOSStrategy": {"beClass": {"memoryQOS": {"wmarkMinAdj": 51}}}}, "wmarkMinAdj"),
        ({"cpuBurstStrategy": {"cpuBurstPercent": 10001}}, "cpuBurstPercent"),
        ({"hostApplications": [{"cgroupPath": {"base": "elsewhere"}}]}, "base"),
    ],
)
async def test_node_slo_ranges(client: ApiClient, node_name: str, strategy, field: str) -> None:
    """The bounds that Koordinator's definition sets."""
    with pytest.raises(errors.Invalid, match=field):
        await client.create(NODE_SLOS.collection(), node_slo(node_name, strategy))


async def test_a_topology_is_written_in_the_old_version_and_stored_in_the_new(
    client: ApiClient, node_name: str
) -> None:
    """Koordinator speaks v1alpha1 only; others read v1alpha2."""
    amount = {"capacity": "2", "allocatable": "2", "available": "2"}
    topology = {
        "apiVersion": NODE_TOPOLOGIES.api_version,
        "kind": "NodeResourceTopology",
        "metadata": {"name": node_name},
        "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu"} | amount]}],
    }
    await client.create(NODE_TOPOLOGIES.collection(), topology)

    newer = NODE_TOPOLOGIES.object(node_name).replace("v1alpha1", "v1alpha2")
    found = await client.get(newer)

    assert (found["topologyPolicies"], found["zones"]) == (["None"], topology["zones"])


async def test_lists_in_pages(client: ApiClient, node_name: str) -> None:
    """The server cuts the list, and the pages make it whole."""
    names = {f"{node_name}-{index}" for index in range(5)}
    for name in names:
        await client.create(NODE_METRICS.collection(), node_metric(name))

    pages = [page async for page in client.pages(NODE_METRICS.collection(), size=2)]

    found = [item["metadata"]["name"] for page in pages for item in page.items]
    assert len(pages) >= 3
    assert names <= set(found)
    assert len(found) == len(set(found))


async def watched(client: ApiClient, name: str, version: str, seconds: int) -> list[WatchEvent]:
    query = {
        "fieldSelector": field_selector({"metadata.name": name}),
        "resourceVersion": version,
    }
    limits = WatchLimits(seconds=seconds)
    async with client.watch(NODE_METRICS.collection(), query, limits) as events:
        return [event async for event in events]


async def test_a_watch_ends_in_time_with_a_bookmark(
    client: ApiClient, node_name: str, metric
) -> None:
    """Only our object, then a newer version to go on from, then the end.

    A server that is busy may leave the bookmark out: then the next watch has it.
    """
    version = metric["metadata"]["resourceVersion"]
    watching = asyncio.ensure_future(watched(client, node_name, version, 4))
    await client.replace_status(status_path(node_name), metric["metadata"]["uid"], STATUS)
    await client.create(NODE_METRICS.collection(), node_metric(f"{node_name}-other"))
    await client.delete(NODE_METRICS.object(node_name))

    events = await watching
    for _ in range(10):
        if len(events) > 2:
            break
        version = events[-1].object["metadata"]["resourceVersion"]
        events += await watched(client, node_name, version, 6)

    assert [event.type for event in events[:3]] == ["MODIFIED", "DELETED", "BOOKMARK"]
    assert {event.type for event in events[2:]} == {WatchEventType.BOOKMARK}
    bookmark = events[-1].object["metadata"]["resourceVersion"]
    assert int(bookmark) >= int(events[1].object["metadata"]["resourceVersion"])


async def test_a_version_that_was_compacted_is_gone(
    client: ApiClient, node_name: str, metric, own_plane: ControlPlane
) -> None:
    """The server restarted and etcd forgot: both the watch and the half list must begin again."""
    for index in range(3):
        await client.create(NODE_METRICS.collection(), node_metric(f"{node_name}-{index}"))
    pages = client.pages(NODE_METRICS.collection(), size=1)
    await anext(pages)
    newest = await client.merge_patch(NODE_METRICS.object(node_name), {"metadata": {"labels": {}}})
    newest = await client.merge_patch(
        NODE_METRICS.object(node_name), {"metadata": {"labels": {"a": "b"}}}
    )
    await asyncio.to_thread(own_plane.stop_server)
    await asyncio.to_thread(own_plane.compact, int(newest["metadata"]["resourceVersion"]))
    await asyncio.to_thread(own_plane.start_server)
    await until_served(client, NODE_METRICS)

    with pytest.raises(errors.Gone):
        await watched(client, node_name, metric["metadata"]["resourceVersion"], 2)
    with pytest.raises(errors.Gone):
        await anext(pages)


class Followed:
    """A reflector of one NodeMetric, and the changes that it reported."""

    def __init__(self, client: ApiClient, name: str) -> None:
        self.changes: list[Change[dict[str, Any]]] = []
        self.reflector = Reflector(
            client,
            Watched(
                name="nodemetric",
                path=NODE_METRICS.collection(),
                query={"fieldSelector": field_selector({"metadata.name": name})},
                read=without_managed_fields,
                on_change=self.changes.append,
            ),
            SystemClock(),
        )

    @property
    def reported(self) -> list[str]:
        return [change.kind.value for change in self.changes]

    def label(self, name: str) -> str | None:
        item = self.reflector.objects.get(name)
        return (item or {}).get("metadata", {}).get("labels", {}).get("step")


@asynccontextmanager
async def following(client: ApiClient, name: str) -> AsyncIterator[Followed]:
    followed, stop = Followed(client, name), Stop(SystemClock())
    task = asyncio.ensure_future(followed.reflector.run(stop))
    yield followed
    stop.set()
    await asyncio.wait_for(task, 5)


def step(value: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"step": value}}}


async def test_a_copy_follows(client: ApiClient, node_name: str, eventually: Eventually) -> None:
    """From nothing, through all that can happen to an object, to the next of its name."""
    path = NODE_METRICS.object(node_name)
    async with following(client, node_name) as followed:
        await eventually(lambda: followed.reflector.synced)
        await client.create(NODE_METRICS.collection(), node_metric(f"{node_name}-other"))
        await client.create(NODE_METRICS.collection(), node_metric(node_name))
        await client.merge_patch(path, step("1"))
        await eventually(lambda: followed.label(node_name) == "1")
        await client.delete(path)
        await client.create(NODE_METRICS.collection(), node_metric(node_name))
        await eventually(lambda: len(followed.changes) == 5)

    assert followed.reported == ["synced", "added", "modified", "deleted", "added"]
    assert "managedFields" not in followed.reflector.objects[node_name]["metadata"]


async def test_a_copy_catches_up_after_a_restart_of_the_server(
    client: ApiClient, node_name: str, metric, own_plane: ControlPlane, eventually: Eventually
) -> None:
    """Its last state stays meanwhile; where the server no longer knows our version, we list."""
    path = NODE_METRICS.object(node_name)
    async with following(client, node_name) as followed:
        await client.merge_patch(path, step("1"))
        await eventually(lambda: followed.label(node_name) == "1")
        # Versions go on elsewhere, so that ours is older than all the restarted server knows.
        for index in range(3):
            await client.create(NODE_SLOS.collection(), node_slo(f"{node_name}-{index}", {}))
        await asyncio.to_thread(own_plane.stop_server)
        await eventually(lambda: followed.reflector.health() != OK)
        assert followed.label(node_name) == "1"
        await asyncio.to_thread(own_plane.start_server)
        await until_served(client, NODE_METRICS)
        await client.merge_patch(path, step("2"))
        await eventually(lambda: followed.label(node_name) == "2")
        await eventually(lambda: followed.reflector.health() == OK)

    kinds = [change.kind for change in followed.changes]
    assert ChangeKind.DELETED not in kinds
    assert kinds.count(ChangeKind.ADDED) == 1
