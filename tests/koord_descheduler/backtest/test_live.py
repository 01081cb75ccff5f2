"""A record of what an API server has, and of what its descheduler's ledger says."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koord.cluster import kinds
from koord.kube.client import CONFIG_MAPS, ApiClient
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_descheduler.backtest.player import summarize
from koord_descheduler.backtest.recorder import LiveRecorder, RecordOptions, RecordProgress
from koord_descheduler.backtest.records import RecordFull, RecordReader, Tick, TickDecoder
from koord_descheduler.ledger.entries import Entry, LedgerDocument, WorkloadRef, to_text
from koord_descheduler.ledger.ledger import KEY, NAME
from tests.support.clusters import node, pod
from tests.support.kube.apiserver import ApiServer

PASS = Callable[..., Any]
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
REPORTS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"


def ticks(path: Path) -> list[Tick]:
    decoder = TickDecoder()
    blocks = enumerate(RecordReader(path).blocks())
    return [tick for at, data in blocks for tick in (decoder.ticks(data) if at else ())]


def report(name: str, cores: int) -> dict[str, Any]:
    usage = {"resources": {"cpu": str(cores), "memory": "1Gi"}}
    status = {"updateTime": "2026-07-24T06:52:45Z", "nodeMetric": {"nodeUsage": usage}}
    return {"metadata": {"name": name}, "status": status}


def options(path: Path, **more: Any) -> RecordOptions:
    fields = {"namespace": "ns", "config": "kind: x", "recorder": "test", "most_bytes": 1 << 20}
    return RecordOptions(path=path, **{**fields, **more})


async def test_what_the_server_has_and_what_then_changes(
    server: ApiServer, client: ApiClient, clock: SimulatedClock, pass_time: PASS, tmp_path: Path
) -> None:
    """The cluster first, then changes by the second; nothing is written to the server."""
    path, shown = tmp_path / "r", list[RecordProgress]()
    for name in ("n1", "n2"):
        server.objects.create(NODES, node(name))
        server.objects.create(REPORTS, report(name, 1))
    server.objects.create(PODS, pod("web-1", "n1"))
    stop = Stop(clock)
    recorder = LiveRecorder(client, clock, options(path), show=shown.append, wait=lambda _: None)
    running = asyncio.create_task(recorder.run(stop))
    await pass_time(lambda: len(shown) >= 2)

    at = clock.wall()
    entry = Entry(
        pod="default/web-1",
        uid="uid-default-web-1",
        node="n1",
        workload=WorkloadRef("Pod", "default", "web-1"),
        at=at,
        plugin="LowNodeLoad",
    )
    old = Entry(pod="a/b", uid="u", node="n1", workload=WorkloadRef("Pod", "a", "b"), at=5.0)
    ledger = {KEY: to_text(LedgerDocument((old, entry)))}
    item = {"metadata": {"namespace": "ns", "name": NAME}, "data": ledger}
    server.objects.create(CONFIG_MAPS.collection(), item)
    server.objects.delete(PODS, "default/web-1")
    server.objects.create(PODS, pod("web-2", "n2"))
    server.objects.replace(REPORTS, report("n1", 3))
    await pass_time(lambda: shown[-1].evictions == 1)
    stop.set()
    result = await running

    assert result is not None
    assert (result.nodes, result.reports, result.evictions) == (2, 3, 1)
    found = summarize(path)
    assert (found.header.config, found.header.recorder) == ("kind: x", "test")
    [eviction] = found.evictions
    assert (eviction.pod, eviction.node, eviction.plugin) == ("default/web-1", "n1", "LowNodeLoad")
    assert eviction.at == pytest.approx(at)
    first, *later = ticks(path)
    assert {one.key for one in first.changes if one.kind is kinds.NODE} == {"n1", "n2"}
    pods = {
        one.key: one.item is not None
        for tick in later
        for one in tick.changes
        if one.kind is kinds.POD
    }
    assert pods == {"default/web-1": False, "default/web-2": True}
    assert {entry.method for entry in server.requests} == {"GET"}


async def test_it_ends_by_itself(
    server: ApiServer, client: ApiClient, clock: SimulatedClock, pass_time: PASS, tmp_path: Path
) -> None:
    """After the time that is wanted."""
    server.objects.create(NODES, node("n1"))
    recorder = LiveRecorder(
        client,
        clock,
        options(tmp_path / "r", most_seconds=30.0),
        show=lambda _: None,
        wait=lambda _: None,
    )
    running = asyncio.create_task(recorder.run(Stop(clock)))
    await pass_time(running.done)

    result = running.result()
    assert result is not None
    assert 30.0 <= result.seconds < 33.0
    assert summarize(tmp_path / "r").evictions == ()


async def test_a_full_file_ends_it(
    server: ApiServer, client: ApiClient, clock: SimulatedClock, pass_time: PASS, tmp_path: Path
) -> None:
    """With what to do; the followers end as well."""
    for at in range(200):
        server.objects.create(NODES, node(f"n{at}", {"of": str(at * 7919)}))
    limited = options(tmp_path / "r", most_bytes=300)
    recorder = LiveRecorder(client, clock, limited, show=lambda _: None, wait=lambda _: None)
    running = asyncio.create_task(recorder.run(Stop(clock)))
    await pass_time(running.done)

    with pytest.raises(RecordFull, match="raise --max-size"):
        running.result()


async def test_a_server_that_is_away_is_waited_for(
    server: ApiServer, client: ApiClient, clock: SimulatedClock, pass_time: PASS, tmp_path: Path
) -> None:
    """Saying for what; a stop ends that."""
    await server.stop()
    waited: list[str] = []
    stop = Stop(clock)
    recorder = LiveRecorder(
        client, clock, options(tmp_path / "r"), show=lambda _: None, wait=waited.append
    )
    running = asyncio.create_task(recorder.run(stop))
    await pass_time(lambda: len(waited) > 0)
    stop.set()

    assert await running is None
    assert "not listed yet" in waited[0]
