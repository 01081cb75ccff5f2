"""The metrics endpoints, also while a source of metrics fails."""

import asyncio
import gzip
import threading

import pytest
from prometheus_client import Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from koord.component.http.exposition import OPENMETRICS, TEXT, Exposition, FamilySelection
from koord.component.metrics import FamilyRules
from koord.util.simulatedclock import SimulatedClock

RULES = FamilyRules(
    prefix="agent",
    internal=frozenset({"agent_node_used_cpu_cores", "agent_pod_eviction"}),
    unsuffixed_counters=frozenset({"agent_pod_eviction"}),
)


class Source:
    """A collector as the exposition sees it."""

    name = "source"

    def __init__(self, *families):
        self._families = families

    def families(self):
        yield from self._families


class Broken:
    name = "broken"
    cured = False

    def families(self):
        yield GaugeMetricFamily("half", "Made before it failed.", value=1)
        if not self.cured:
            raise RuntimeError("no more")

    collect = families


class Slow:
    """Makes its families when the test says so."""

    name = "slow"

    def __init__(self):
        self.asked = 0
        self.go = threading.Event()

    def families(self):
        self.asked += 1
        assert self.go.wait(60)
        return [GaugeMetricFamily("slow", "Slow.", value=self.asked)]


def names(body: bytes) -> list[str]:
    return [family.name for family in text_string_to_metric_families(body.decode())]


@pytest.fixture
def source():
    return Source(
        GaugeMetricFamily("agent_node_used_cpu_cores", "Internal upstream.", value=1),
        UnknownMetricFamily("agent_pod_eviction", "Internal upstream.", value=1),
        GaugeMetricFamily("agent_pod_psi", "External upstream.", value=1),
        GaugeMetricFamily("node_network_up", "node_exporter's.", value=1),
    )


@pytest.fixture
def exposition(source):
    exposition = Exposition(RULES, lambda: [source])
    Counter("agent_rounds_total", "Own.", registry=exposition.internal)
    Gauge("agent_node_resource_allocatable", "Users'.", registry=exposition.external)
    return exposition


def test_each_view_shows_its_families(exposition):
    """What is about the agent is internal, what is for users external, /metrics has both."""
    internal = names(exposition.render(FamilySelection.INTERNAL, TEXT))
    external = names(exposition.render(FamilySelection.EXTERNAL, TEXT))
    everything = names(exposition.render(FamilySelection.ALL, TEXT))

    assert {"agent_node_used_cpu_cores", "agent_pod_eviction", "agent_rounds"} <= {*internal}
    assert external == [
        "agent_pod_psi",
        "node_network_up",
        "agent_node_resource_allocatable",
    ]
    assert everything == internal + external


def test_process_and_python_are_among_the_internal_families(exposition):
    """As Koordinator exports metrics of its process and language runtime."""
    internal = names(exposition.render(FamilySelection.INTERNAL, TEXT))

    assert {"process_resident_memory_bytes", "python_info", "python_gc_collections"} <= {*internal}


def test_what_fails_is_left_out_and_counted(source):
    """A source and a registered collector that raise cost no other source its families."""
    broken = Broken()
    exposition = Exposition(RULES, lambda: [broken, source])
    exposition.external.register(broken)

    body = exposition.render(FamilySelection.ALL, TEXT)
    again = exposition.render(FamilySelection.INTERNAL, TEXT).decode()

    assert "agent_pod_psi" in names(body)
    assert "half" not in names(body)
    assert 'agent_exposition_failures_total{source="broken"} 1.0' in body.decode()
    assert 'agent_exposition_failures_total{source="Broken"} 1.0' in again


def test_a_source_that_recovers_is_back(source, capsys):
    """Failure and recovery are logged once each."""
    broken = Broken()
    exposition = Exposition(RULES, lambda: [broken])
    for _ in range(3):
        exposition.render(FamilySelection.ALL, TEXT)
    broken.cured = True

    body = exposition.render(FamilySelection.ALL, TEXT)

    log = capsys.readouterr().err
    assert "half" in names(body)
    assert log.count("exposition.incomplete") == 1
    assert log.count("exposition.recovered") == 1


def test_a_family_exported_twice_appears_once(source):
    """A plugin that takes the name of a collector's family does not make the scrape invalid."""
    twice = Source(GaugeMetricFamily("agent_pod_psi", "Mine.", value=2))
    exposition = Exposition(RULES, lambda: [source, twice])

    body = exposition.render(FamilySelection.ALL, TEXT).decode()

    assert body.count("# TYPE agent_pod_psi ") == 1
    assert "agent_pod_psi 1.0" in body


def test_an_unregistered_collector_is_gone(exposition):
    """Registries of the daemon stay what prometheus_client says they are."""
    gauge = Gauge("leaving", "Leaves.", registry=exposition.internal)
    exposition.internal.unregister(gauge)

    assert "leaving" not in names(exposition.render(FamilySelection.ALL, TEXT))


async def test_scrapes_of_a_second_share_one_rendering():
    """A hundred scrapes cost as much as one, in all views and encodings; later ones are new."""
    slow, clock = Slow(), SimulatedClock()
    exposition = Exposition(RULES, lambda: [slow], clock=clock)
    scrapes = [
        asyncio.create_task(exposition.body(FamilySelection.EXTERNAL, TEXT, compress=False))
        for _ in range(10)
    ]
    await asyncio.sleep(0)
    slow.go.set()

    bodies = await asyncio.gather(*scrapes)
    for view in list(FamilySelection) * 10:
        for compress in (False, True):
            await exposition.body(view, TEXT, compress=compress)
    assert slow.asked == 1
    await clock.advance(0.9)
    same = await exposition.body(FamilySelection.EXTERNAL, TEXT, compress=False)
    await clock.advance(0.2)
    later = await exposition.body(FamilySelection.EXTERNAL, TEXT, compress=False)

    assert {*bodies, same} == {bodies[0]}
    assert b"slow 1.0\n" in bodies[0]
    assert b"slow 2.0\n" in later


async def test_a_scraper_that_leaves_takes_nothing_along():
    """Others that wait for the same rendering still get it."""
    slow = Slow()
    exposition = Exposition(RULES, lambda: [slow])
    first, second = (
        asyncio.create_task(exposition.body(FamilySelection.EXTERNAL, TEXT, compress=False))
        for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    slow.go.set()

    assert b"slow 1.0\n" in await second
    assert first.cancelled()


async def test_different_formats_are_rendered_one_after_another():
    """At most one thread renders, however many formats and views are asked for."""
    running = most = 0
    lock = threading.Lock()

    class Counting:
        name = "counting"

        def families(self):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            yield GaugeMetricFamily("g", "G.", value=1)
            with lock:
                running -= 1

    exposition = Exposition(RULES, lambda: [Counting()])
    await asyncio.gather(
        *(
            exposition.body(view, form, compress=compress)
            for view in FamilySelection
            for form in (TEXT, OPENMETRICS)
            for compress in (True, False)
        )
    )

    assert most == 1


async def test_compressed_is_the_same_smaller(exposition):
    """gzip carries what the plain body says."""
    plain = await exposition.body(FamilySelection.EXTERNAL, TEXT, compress=False)
    compressed = await exposition.body(FamilySelection.EXTERNAL, TEXT, compress=True)

    assert gzip.decompress(compressed) == plain
