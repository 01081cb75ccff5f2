"""The topology in the cluster: over real HTTP to a scripted server, on simulated time."""

import asyncio
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.api.kubelet import KubeletConfig
from koord.api.node import Node
from koord.kube.client import NODE_TOPOLOGIES, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Call, Limits, Transport
from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from koordlet.plugin.testing import SimulatedClock
from koordlet.reporter.object_reconciler import TopologyReporter
from koordlet.rules.node_topology import KubeletFacts, TopologyInputs, node_topology
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import KubeTopology
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import drop, hang, refuse
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.machines import machine, topology

TOPOLOGIES = NODE_TOPOLOGIES.collection()
LS_POOLS = "node.koordinator.sh/cpu-shared-pools"
NODE = Node("n1", uid="node-uid")
INPUTS = TopologyInputs(machine(), NODE, (), KubeletFacts(KubeletConfig()))
MORE = {"annotations": {"node.koordinator.sh/reservation": '{"reservedCPUs":"0"}'}}


def made_from(**changes: Any) -> Any:
    return node_topology(replace(INPUTS, **changes))[0]


class CountingTransport(Transport):
    """Knows how many requests are under way, but for watches."""

    under_way = 0

    async def exchange(self, call: Call) -> bytes:
        self.under_way += 1
        try:
            return await super().exchange(call)
        finally:
            self.under_way -= 1


class Scene:
    """A reporter, and a server whose object others may touch."""

    def __init__(
        self, server: ApiServer, transport: CountingTransport, clock: SimulatedClock
    ) -> None:
        self.server, self.transport, self.clock = server, transport, clock
        self.states = StatesInformer(clock)
        self.states.set_node(NODE)
        client = ApiClient(transport, clock, draw=lambda: 0.0)
        self.own = KubeTopology(client, "n1", clock)
        self.owner: Node | None = NODE  # as the cluster has it now
        self.reporter = TopologyReporter(
            client,
            "n1",
            self.states,
            self.own,
            clock,
            interval=3.0,
            owner=lambda: self.owner,
            draw=lambda: 0.0,
        )
        self._stop = Stop(clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self, **changes: Any) -> None:
        """Begin to report, as a daemon does that knows its topology already."""
        self.states.set_node_topology(made_from(**changes))
        self.begin()
        await self.until(lambda: self.server.watched)
        await self.seconds(4)

    def begin(self) -> None:
        self._task = asyncio.create_task(self.reporter.run(self._stop))

    async def seconds(self, count: float, step: float = 1.0) -> None:
        """Let time pass; at each step the network takes as long as it takes."""
        for _ in range(int(count / step)):
            await self.clock.advance(step)
            await self.clock.until(self._is_quiet)
            await self.clock.settle()

    async def until(self, condition: Any) -> None:
        for _ in range(2000):
            if condition():
                return
            await self.seconds(1)
        raise AssertionError("not so after 2000 simulated seconds")

    async def end(self) -> None:
        if self._task is not None:
            self._stop.set()
            await asyncio.wait_for(self._task, 60)

    def object(self) -> dict[str, Any]:
        return copy.deepcopy(self.server.objects.get(TOPOLOGIES, "n1"))

    def damage(self) -> None:
        """What another writer of the same fields does."""
        found = self.object()
        found["metadata"]["annotations"][LS_POOLS] = "null"
        self.server.objects.replace(TOPOLOGIES, found)

    @property
    def pools(self) -> str:
        return self.object()["metadata"]["annotations"].get(LS_POOLS, "")

    def writes(self) -> list[str]:
        return [entry.verb for entry in self.server.requests if entry.method != "GET"]

    def _is_quiet(self) -> bool:
        """Whether no response and no event of the watch is on its way."""
        if self.transport.under_way:
            return False
        if self.server.silent or not self.server.watched or not self.own.synced:
            return True
        known = self.own.published()
        there = [
            item["metadata"]["resourceVersion"] for item in self.server.objects.all(TOPOLOGIES)
        ]
        return there == ([] if known is None else [known.version])


RIGHT = '[{"socket":0,"node":0,"cpuset":"0-3"},{"socket":1,"node":1,"cpuset":"4-7"}]'


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def transport(server, clock) -> AsyncIterator[CountingTransport]:
    config = ApiConfig(server=server.url, source="the test")
    transport = CountingTransport(config, clock, limits=Limits(qps=0))
    yield transport
    await transport.close()


@pytest.fixture
async def scene(server, transport, clock) -> AsyncIterator[Scene]:
    scene = Scene(server, transport, clock)
    yield scene
    await scene.end()


async def test_an_object_is_made_where_there_is_none(scene, server):
    """Whole, in one request; then nothing is written or asked, however long it lasts."""
    await scene.start()
    assert scene.pools == RIGHT
    found = scene.object()
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert [zone["name"] for zone in found["zones"]] == ["node-0", "node-1"]

    asked = len(server.requests)
    await scene.seconds(120)
    assert len(server.requests) == asked
    assert scene.writes() == ["create"]
    assert {entry.query.get("fieldSelector") for entry in server.asked("watch")} == {
        "metadata.name=n1"
    }
    assert scene.reporter.health() == OK


async def test_an_object_that_is_right_is_left_alone(scene, server):
    """As after a restart of ours: of all that is said, nothing is new."""
    await scene.start()
    found = scene.object()
    await scene.end()
    server.requests.clear()

    again = Scene(server, scene.transport, scene.clock)
    await again.start()
    await again.seconds(10)
    await again.end()
    assert again.writes() == []
    assert again.object() == found


async def test_a_change_is_one_patch(scene, server):
    """With a test of uid and version; what others have written stays."""
    await scene.start()
    found = scene.object()
    found["metadata"]["annotations"]["theirs"] = "kept"
    batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k"}
    found["zones"][0]["resources"].append(batch)
    server.objects.replace(TOPOLOGIES, found)
    await scene.seconds(1)
    scene.states.set_node_topology(made_from(machine=machine(topology([(0, 1)], [(4, 5)]))))
    await scene.seconds(6)

    assert scene.writes() == ["create", "patch"]
    [request] = server.asked("patch")
    assert [operation["path"] for operation in request.json[:2]] == [
        "/metadata/uid",
        "/metadata/resourceVersion",
    ]
    after = scene.object()
    assert after["metadata"]["annotations"]["theirs"] == "kept"
    assert batch in after["zones"][0]["resources"]
    assert after["zones"][0]["resources"][0]["allocatable"] == "2"


async def test_nothing_is_written_before_the_topology_is_known(scene, server):
    """Not even an empty object."""
    scene.begin()
    await scene.seconds(30)
    assert scene.writes() == []


async def test_damage_is_put_right(scene, server):
    """And logged."""
    await scene.start()
    with capture_logs() as logs:
        scene.damage()
        await scene.seconds(6)
    assert scene.pools == RIGHT
    [event] = [entry for entry in logs if entry["event"] == "topology.corrected"]
    assert "cpu-shared-pools" in event["parts"][0]


async def test_a_war_of_writers_is_not_fought(scene, server):
    """Another writer who changes our part at every second is corrected ever more rarely."""
    await scene.start()
    for _ in range(40):
        scene.damage()
        await scene.seconds(15, step=7.5)
    assert 5 <= len(server.asked("patch")) <= 9

    await scene.until(lambda: scene.pools == RIGHT)
    server.bookmark()
    await scene.seconds(500, step=20)
    server.bookmark()
    await scene.seconds(200, step=20)
    scene.damage()
    await scene.seconds(6)
    assert scene.pools == RIGHT


async def test_a_change_of_ours_does_not_wait_for_a_dispute(scene, server):
    """Only corrections do."""
    await scene.start()
    for _ in range(30):
        scene.damage()
        await scene.seconds(5)
    scene.states.set_node_topology(made_from(node=replace(NODE, **MORE)))
    await scene.seconds(6)
    assert '"cpuset":"1-3"' in scene.pools


async def test_an_object_that_was_deleted_is_made_again(scene, server):
    """It may have been a mistake."""
    await scene.start()
    first = scene.object()["metadata"]["uid"]
    server.objects.delete(TOPOLOGIES, "n1")
    await scene.seconds(6)
    assert scene.object()["metadata"]["uid"] != first
    assert scene.pools == RIGHT


async def test_an_object_goes_with_its_node(scene, server):
    """The Node was renamed or deleted: Kubernetes removes what it owned, time and again."""
    await scene.start()
    scene.owner = None
    server.objects.delete(TOPOLOGIES, "n1")
    await scene.seconds(60)
    assert server.objects.all(TOPOLOGIES) == []

    scene.owner = replace(NODE, uid="of the new one")
    await scene.until(lambda: server.objects.all(TOPOLOGIES))
    assert scene.object()["metadata"]["ownerReferences"][0]["uid"] == "of the new one"


async def test_an_object_that_was_made_anew_by_another_client(scene, server):
    """Gets our part, under its own uid."""
    await scene.start()
    server.objects.delete(TOPOLOGIES, "n1")
    server.objects.create(
        TOPOLOGIES, {"metadata": {"name": "n1"}, "topologyPolicies": [], "zones": []}
    )
    await scene.seconds(8)
    assert scene.pools == RIGHT
    assert len(scene.object()["zones"]) == 2
    assert scene.writes() == ["create", "patch"]


@pytest.mark.parametrize(
    "fault",
    [
        refuse(404),
        refuse(409, "Conflict"),
        refuse(422, "Invalid"),
        refuse(422, "Invalid", details={"causes": [{"field": "zones"}]}),
        refuse(429, headers={"Retry-After": "1"}),
        refuse(500),
        refuse(503),
        drop,
    ],
)  # fmt: skip
async def test_a_lost_write_is_made_again(scene, server, fault):
    """A few times within the first minute; what is wrong is said until then."""
    server.script(fault, fault, method="POST")
    await scene.start()
    await scene.until(lambda: server.asked("create"))
    await scene.until(lambda: len(server.objects.all(TOPOLOGIES)) == 1)
    await scene.seconds(4)
    assert scene.pools == RIGHT
    assert scene.reporter.health() == OK

    server.script(fault, fault, method="PATCH")
    scene.states.set_node_topology(made_from(node=replace(NODE, **MORE)))
    await scene.until(lambda: "1-3" in scene.pools)


async def test_stop_does_not_wait_for_a_server_that_hangs(scene, server):
    """The next agent writes it."""
    server.script(hang, method="POST")
    scene.states.set_node_topology(made_from())
    scene.begin()
    for _ in range(2000):
        await scene.clock.advance(1)
        await network_is_quiet()
        if server.asked("create"):
            break
    await scene.end()
    assert scene.writes() == ["create"]


async def test_a_server_that_was_away_gets_it_soon(scene, server):
    """Within a minute, however long it was away."""
    await scene.start()
    server.script(*[refuse(503)] * 100, method="PATCH")
    scene.states.set_node_topology(made_from(node=replace(NODE, **MORE)))
    await scene.seconds(400, step=4)
    server.unscript()
    await scene.seconds(40)
    assert "1-3" in scene.pools


async def test_a_lasting_refusal_is_tried_ever_more_rarely(scene, server):
    """And stands in the health, with what the server said."""
    await scene.start()
    server.script(*[refuse(403, "Forbidden")] * 100, method="PATCH")
    with capture_logs() as logs:
        scene.states.set_node_topology(made_from(node=replace(NODE, **MORE)))
        await scene.seconds(500, step=4)
    assert 6 <= len(server.asked("patch")) <= 10
    health = scene.reporter.health()
    assert health.status is HealthStatus.DEGRADED
    assert "403" in health.reason
    assert [entry["event"] for entry in logs].count("topology.report_failed") == 1


async def test_a_cluster_without_the_crd(scene, server):
    """Is asked every few minutes, says so once, and gets the object when the CRD is there."""
    server.script(*[refuse(404, "NotFound")] * 4, method="GET", path=TOPOLOGIES)
    with capture_logs() as logs:
        scene.states.set_node_topology(made_from())
        scene.begin()
        await scene.seconds(400, step=8)
    assert 2 <= len(server.requests) <= 4
    assert scene.writes() == []
    assert "install the CRD" in scene.reporter.health().reason
    assert [entry["event"] for entry in logs].count("watch.failed") == 1

    await scene.until(lambda: len(server.objects.all(TOPOLOGIES)) == 1)
    await scene.seconds(4)
    assert scene.pools == RIGHT
    assert scene.reporter.health() == OK


async def test_a_write_that_was_overtaken(scene, server):
    """By another writer, whose version comes by watch: the next patch is for that one."""
    await scene.start()
    server.silent = True  # the watch is late
    found = scene.object()
    found["metadata"]["annotations"]["theirs"] = "new"
    server.objects.replace(TOPOLOGIES, found)
    scene.states.set_node_topology(made_from(node=replace(NODE, **MORE)))
    await scene.until(lambda: server.asked("patch"))
    assert scene.pools == RIGHT

    server.silent = False
    server.objects.wake()
    await scene.until(lambda: "1-3" in scene.pools)
    assert scene.object()["metadata"]["annotations"]["theirs"] == "new"
