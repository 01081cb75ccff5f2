"""The descheduling cycle as the work of a leader, against a scripted API server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from koord.cluster.facts import ClusterNode
from koord.component.leaderelection import ElectionConfig, LeaderElector, LeaderMetrics, LeaseLost
from koord.kube.client import ApiClient
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_descheduler.framework.interfaces import EvictOptions
from koord_descheduler.framework.profile import Descheduler
from tests.support.descheduler.framework import NODES, Both, Kit, make_pod
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.fixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures


async def test_a_lease_lost_in_the_middle_of_a_cycle_ends_its_evictions(
    server: ApiServer,  # noqa: F811
    client: ApiClient,  # noqa: F811
    clock: SimulatedClock,  # noqa: F811
    pass_time: Any,  # noqa: F811
) -> None:
    """One pod a second, until the deadline of the last renewal; then another replica may act."""
    kit, evicted = Kit(clock), list[tuple[str, EvictOptions]]()

    async def one_a_second(plugin: Both, nodes: Sequence[ClusterNode]) -> None:
        for number in range(1000):
            await plugin.handle.evictor().evict(make_pod(str(number)))
            await clock.sleep(1.0)

    args = {"A": {"balance": one_a_second}, "Evict": {"evicted": evicted}}
    profile = await kit.profile(balance=("A",), args=args)

    def listed() -> Sequence[ClusterNode]:
        return NODES

    cycles = Descheduler(
        [profile], listed, kit.limiter, kit.metrics, clock, decisions=kit.decisions, interval=10.0
    )
    elector = LeaderElector(
        client,
        ElectionConfig(namespace="ns", name="lease", identity="one"),
        cycles.run,
        clock,
        metrics=LeaderMetrics(CollectorRegistry()),
        component="koord-descheduler",
    )
    leading = asyncio.create_task(elector.run(Stop(clock)))
    await pass_time(lambda: len(evicted) >= 3)
    await server.stop()
    gone_at = clock.monotonic()
    await pass_time(leading.done)

    assert clock.monotonic() - gone_at <= 11.0
    with pytest.raises(LeaseLost):
        leading.result()
    many = len(evicted)
    await clock.advance(60.0)
    assert len(evicted) == many <= 15
