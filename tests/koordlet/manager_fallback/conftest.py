"""The duties against a scripted API server: real HTTP, simulated time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.kube.client import CONFIG_MAPS, LEASES, NODE_METRICS, NODE_SLOS, NODES, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.managedobjects import NODE_METRIC, NODE_SLO
from koord.kube.transport import Limits, Transport
from koord.util.stop import Stop
from koordlet.manager_fallback import ManagerRoleMode
from koordlet.manager_fallback.roles import ManagerRoleOptions, ManagerRoles
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import KubeNodeMetric, kube_node, kube_node_slo
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.loopback_network import network_is_quiet

NAMESPACE = "koordinator-system"
METRICS, SLOS, ALL_NODES, CONFIGS, ALL_LEASES = (
    resource.collection() for resource in (NODE_METRICS, NODE_SLOS, NODES, CONFIG_MAPS, LEASES)
)
Object = dict[str, Any]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A cluster with the Node n1 of pool a, its CRDs, and nothing else."""
    server = ApiServer()
    server.objects.create(ALL_NODES, {"metadata": {"name": "n1", "labels": {"pool": "a"}}})
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ApiServer, clock: SimulatedClock) -> AsyncIterator[ApiClient]:
    config = ApiConfig(server=server.url, source="the test")
    client = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock, draw=lambda: 0.0)
    yield client
    await client.close()


class Agent:
    """The duties of n1 with the sources that they look at, and what happens around them."""

    def __init__(self, server: ApiServer, client: ApiClient, clock: SimulatedClock) -> None:
        self.server, self.client, self.clock = server, client, clock
        self.registry = CollectorRegistry()
        self.observe_only = ""  # why nothing may be written
        self.roles: ManagerRoles
        self._stop = Stop(clock)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, mode: ManagerRoleMode = ManagerRoleMode.AUTO) -> None:
        states = StatesInformer(self.clock)
        node, slo = (
            kube(self.client, "n1", states, self.clock) for kube in (kube_node, kube_node_slo)
        )
        metric = KubeNodeMetric(self.client, "n1", states, self.clock)
        self.reported: list[str] = []
        self.roles = ManagerRoles(
            ManagerRoleOptions(
                mode=mode, config_namespace=NAMESPACE, config_name="slo-controller-config"
            ),
            [(NODE_METRIC, metric), (NODE_SLO, slo)],
            node,
            client=self.client,
            clock=self.clock,
            registry=self.registry,
            observe_only=self._observe_only,
            report=self.reported.append,
        )
        parts = (node, metric, slo, self.roles)
        self._tasks = [asyncio.create_task(part.run(self._stop)) for part in parts]

    async def _observe_only(self) -> str:
        return self.observe_only

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), 10)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what the network brings; no simulated time passes."""
        await self.clock.until(lambda: bool(condition()))

    async def minutes(self, count: float) -> None:
        """Let time pass on a server that sends a bookmark each minute, as all do."""
        whole, rest = divmod(count, 1)
        for part in [*[1.0] * int(whole), *([rest] if rest else [])]:
            await self.clock.advance(60 * part)
            self.server.bookmark()
            for _ in range(4):
                await network_is_quiet()
                await self.clock.settle()

    def found(self, collection: str) -> Object | None:
        """Our object of a kind; None: there is none."""
        return next((item for item in self.server.objects.all(collection)
                     if item["metadata"]["name"] == "n1"), None)  # fmt: skip

    def state(self, kind: str) -> str:
        return self.roles.state()[kind]

    def held(self, name: str) -> float | None:
        return self.registry.get_sample_value("koordlet_manager_duty_held", {"object": name})

    def reasons(self) -> str:
        """What /healthz would say."""
        return "; ".join(part.reason for part in self.roles.health().values() if part.reason)

    def writes(self, collection: str = "") -> list[Any]:
        verbs = ("create", "patch", "update")
        return [entry for verb in verbs for entry in self.server.asked(verb, collection)]

    def configure(self, **keys: object) -> None:
        """Write the ConfigMap: keys without "-config", values as JSON, or texts as they are."""
        data = {
            f"{name.replace('_', '-')}-config": value
            if isinstance(value, str)
            else json.dumps(value)
            for name, value in keys.items()
        }
        self.store(CONFIGS, {
            "metadata": {"name": "slo-controller-config", "namespace": NAMESPACE}, "data": data
        })  # fmt: skip

    def renew(self, time: str, holder: str = "manager-1") -> None:
        """What koord-manager does every two seconds."""
        self.store(ALL_LEASES, {
            "metadata": {"name": "koordinator-manager", "namespace": NAMESPACE},
            "spec": {"holderIdentity": holder, "renewTime": time, "leaseDurationSeconds": 15},
        })  # fmt: skip

    def store(self, collection: str, item: Object) -> None:
        """Create or replace an object, as another client."""
        name = item["metadata"]["name"]
        known = any(one["metadata"]["name"] == name for one in self.server.objects.all(collection))
        (self.server.objects.replace if known else self.server.objects.create)(collection, item)


def written_by(
    manager: str, spec: Object, *, time: str = "2026-07-24T06:00:00Z", field: str = "f:spec",
    subresource: str = "",
) -> Object:  # fmt: skip
    """An object of n1 that another client wrote."""
    entry = {"manager": manager, "operation": "Update", "time": time, "fieldsV1": {field: {}}}
    entry |= {"subresource": subresource} if subresource else {}
    return {"metadata": {"name": "n1", "managedFields": [entry]}, "spec": spec}


@pytest.fixture
async def agent(
    server: ApiServer, client: ApiClient, clock: SimulatedClock
) -> AsyncIterator[Agent]:
    agent = Agent(server, client, clock)
    yield agent
    await agent.stop()
