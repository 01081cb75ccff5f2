"""The whole plugin: figures read beside the cycles, scores of a cycle."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.plugins.args import args_type_of
from koord.util.health import Health, HealthStatus
from koord.util.logs import LevelSpec, configure, set_levels
from koord.util.stop import Stop
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.resultcache import ResultCache
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.plugin import NODE, Handle
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.network_traffic import NetworkTraffic
from koord_scheduler_plugins.network_traffic.readings import UNKNOWN, Measure
from tests.support.clusters import node, read_node
from tests.support.http_site import ScriptedSite
from tests.support.scheduler.framework import Kit, make_pod, make_view
from tests.support.scheduler.prometheus import queries, vector

LABEL = "kubernetes_node"


class Traffic:
    """A profile with the plugin alone, over a site that is Prometheus."""

    def __init__(self, site: ScriptedSite) -> None:
        self.kit = Kit()
        self.site = site
        self.meter: Any = None

    async def start(self, **given: Any) -> None:
        for name in ("n1", "n2", "n3"):
            self.kit.services.cluster.put(NODE, read_node(node(name)))
        declared = args_type_of(NetworkTraffic)
        assert declared is not None
        args, faults = declared.read({"prometheusAddress": self.site.url, **given}, ())
        assert not faults
        handle = Handle(
            profile="p", services=self.kit.services, filters=lambda: pytest.fail("not here")
        )
        plugin = NetworkTraffic(args, handle)
        self.meter = plugin.meter
        profile = await self.kit.profile(score={"NetworkTraffic": plugin})
        self._scoring, self._kept = NodeScoring(profile), ResultCache()

    def scores(self, *, but: str = "") -> dict[str, int]:
        """The scores of nodes, without one that is not feasible."""
        view, pod = self.kit.services.cluster.view(), make_pod()
        names = [view.node(row).name for row in range(len(view))]
        feasible = np.array([name != but for name in names])
        cycle = CycleInput(CycleState(), pod, view)
        fresh = self._scoring.scores(cycle, feasible)
        again = self._scoring.scores(cycle, feasible, self._kept.of(pod))
        assert again.totals.tolist() == fresh.totals.tolist()
        found = zip(fresh.rows.tolist(), fresh.totals.tolist(), strict=True)
        return {names[row]: total for row, total in found}

    async def refresh(self, seconds: float = 0.0) -> None:
        self.kit.clock.tick(seconds)
        await self.meter.refresh()


@pytest.fixture
async def traffic(site: ScriptedSite) -> Any:
    made = Traffic(site)
    yield made
    await made.meter._transport.close()


def rates(**by_node: Any) -> Any:
    answer = vector(*(({LABEL: name}, value) for name, value in by_node.items()))
    return lambda request: answer


async def test_the_tutorials_example(site: ScriptedSite, traffic: Traffic) -> None:
    """71, 85 and 100 percent of the busiest node are 29, 15 and 0, in both queries."""
    amounts = {"n1": 1_000_000, "n2": 1_200_000, "n3": 1_400_000}
    wanted = {"n1": 29, "n2": 15, "n3": 0}
    site.answer = rates(**amounts)
    await traffic.start(networkInterface="ens192", timeRangeInMinutes=3)
    await traffic.refresh()
    assert traffic.scores() == wanted
    assert len(queries(site)) == 1
    assert "[3m0s]" in queries(site)[0]

    again = Traffic(site)
    site.answer = lambda request: next(
        vector(({}, amount)) for name, amount in amounts.items() if name in request.query["query"]
    )
    await again.start(query="sum_over_time")
    await again.refresh()
    assert again.scores() == wanted
    await again.meter._transport.close()


async def test_a_node_without_figures_scores_0(site: ScriptedSite, traffic: Traffic) -> None:
    """One of zero traffic 100; while nothing is known all nodes are alike."""
    site.answer = rates(n1=0, n2="NaN")
    await traffic.start()
    assert traffic.scores() == {"n1": 0, "n2": 0, "n3": 0}
    await traffic.refresh()
    assert traffic.scores() == {"n1": 100, "n2": 0, "n3": 0}


async def test_speeds_of_links_make_it_capacity(site: ScriptedSite, traffic: Traffic) -> None:
    """10, 12 and 14 MB/s of a gigabit are next to nothing."""
    series = [
        ({LABEL: f"n{at}", **way}, value)
        for at, rate in enumerate((10e6, 12e6, 14e6), 1)
        for way, value in (({}, rate), ({"traffic": "speed"}, 125e6))
    ]
    site.answer = lambda request: vector(*series)
    await traffic.start()
    await traffic.refresh()
    assert traffic.scores() == {"n1": 92, "n2": 90, "n3": 88}


async def test_figures_count_until_they_expire(site: ScriptedSite, traffic: Traffic) -> None:
    """While Prometheus is away, or slow, cycles go on; its health says so."""
    site.answer = rates(n1=10, n2=20, n3=0)
    await traffic.start(timeout="100ms")
    await traffic.refresh()
    site.answer = lambda request: 503
    await traffic.refresh(179.0)
    assert traffic.scores() == {"n1": 50, "n2": 0, "n3": 100}
    health = traffic.meter.health()
    assert health.status is HealthStatus.DEGRADED
    assert "503" in health.reason
    await traffic.refresh(2.0)
    assert traffic.scores() == {"n1": 0, "n2": 0, "n3": 0}
    site.answer = rates(n1=10, n2=20, n3=0)
    await traffic.refresh(5.0)
    assert traffic.scores() == {"n1": 50, "n2": 0, "n3": 100}
    assert traffic.meter.health().status is HealthStatus.OK


async def test_metrics_say_how_old_figures_are_and_of_how_many_nodes(
    site: ScriptedSite, traffic: Traffic
) -> None:
    """A node without figures is unknown; one whose figures expired is stale until there are new."""

    def shown(name: str, **labels: str) -> float | None:
        registry = traffic.kit.services.metrics.exposition
        labels = {"meter": meter, **labels}
        return registry.get_sample_value(f"scheduler_network_traffic_{name}", labels)

    def nodes() -> dict[str, float | None]:
        return {state: shown("nodes", state=state) for state in ("known", "unknown", "stale")}

    site.answer = rates(n1=10, n2=20)
    await traffic.start()
    (meter,) = traffic.kit.services.shared._parts
    assert shown("newest_age_seconds") is None
    await traffic.refresh()
    assert nodes() == {"known": 2, "unknown": 1, "stale": 0}
    assert shown("capacity_unknown_nodes") == 2
    assert shown("queries_total", result="answered") == 1
    assert shown("queries_total", result="failed") == 0

    site.answer = lambda request: 503
    await traffic.refresh(181.0)
    assert shown("newest_age_seconds") == 181
    assert nodes() == {"known": 0, "unknown": 1, "stale": 2}
    assert shown("capacity_unknown_nodes") == 0
    assert shown("queries_total", result="failed") == 1

    speed = ({LABEL: "n1", "traffic": "speed"}, 125e6)
    amounts = [({LABEL: name}, 10) for name in ("n1", "n3")]
    site.answer = lambda request: vector(*amounts, speed)
    await traffic.refresh(5.0)
    assert nodes() == {"known": 2, "unknown": 0, "stale": 1}
    assert shown("newest_age_seconds") == 0
    assert shown("capacity_unknown_nodes") == 1


async def test_profiles_with_other_arguments_have_metrics_beside_each_other(
    site: ScriptedSite, traffic: Traffic
) -> None:
    """Each by its own meter; the names are registered once."""
    site.answer = rates(n1=10)
    await traffic.start()
    first = traffic.meter
    await traffic.start(timeRangeInMinutes=3)
    await traffic.refresh()

    registry = traffic.kit.services.metrics.exposition
    known = {
        meter: registry.get_sample_value(
            "scheduler_network_traffic_nodes", {"meter": meter, "state": "known"}
        )
        for meter in traffic.kit.services.shared._parts
    }
    assert sorted(known.values()) == [0, 1]
    await first._transport.close()


async def test_a_prometheus_that_hangs_is_given_up(site: ScriptedSite, traffic: Traffic) -> None:
    """After the timeout, as one that is away."""
    released = asyncio.Event()

    async def hang(request: Any) -> int:
        await released.wait()
        return 503

    site.answer = hang
    await traffic.start(timeout="2s")
    refresh = asyncio.create_task(traffic.meter.refresh())
    await traffic.kit.clock.until(lambda: site.open == 1)
    await traffic.kit.clock.advance(2.0)
    await refresh
    assert "within 2 s" in traffic.meter.health().reason
    released.set()


async def test_an_error_fails_the_pods_that_could_go_there(
    site: ScriptedSite, traffic: Traffic
) -> None:
    """With sum_over_time, in the tutorial's words; others are scored."""
    site.answer = lambda request: vector() if '"n2"' in request.query["query"] else vector(({}, 5))
    await traffic.start(query="sum_over_time")
    await traffic.refresh()
    wanted = (
        "error getting node bandwidth measure: "
        r"\[NetworkTraffic\] Invalid response, expected 1 value, got 0"
    )
    with pytest.raises(ExtensionPointError, match=wanted):
        traffic.scores()
    assert traffic.scores(but="n2") == {"n1": 0, "n3": 0}


async def test_each_node_has_a_line_at_level_debug(
    site: ScriptedSite, traffic: Traffic, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is known of it."""
    configure("json", LevelSpec("debug"))
    site.answer = rates(n1=10, n2=20)
    await traffic.start()
    await traffic.refresh()
    set_levels(LevelSpec())
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    found = {one["node"]: one.get("bandwidth") for one in lines if one["event"] == "node.bandwidth"}
    assert found == {"n1": 10.0, "n2": 20.0, "n3": None}


async def test_a_cycle_asks_nobody(site: ScriptedSite, traffic: Traffic) -> None:
    """New nodes are unknown until the next round, which is every five seconds."""
    site.answer = rates(n1=10, n2=20, n3=40, n4=40)
    await traffic.start()
    stop = Stop(traffic.kit.clock)
    parts = traffic.kit.services.shared
    work = asyncio.create_task(parts.run(stop, traffic.kit.clock, Health()))
    await parts.wait_ready()
    assert traffic.scores() == {"n1": 75, "n2": 50, "n3": 0}
    traffic.kit.services.cluster.put(NODE, read_node(node("n4")))
    assert traffic.scores()["n4"] == 0
    assert len(queries(site)) == 1
    stop.set()
    await work


@given(
    st.dictionaries(
        st.sampled_from([f"n{at}" for at in range(6)]),
        st.one_of(st.just(UNKNOWN), st.integers(0, 2**62)),
    ),
    st.integers(0, 5),
    st.booleans(),
)
def test_both_forms_agree(raw: dict[str, int], count: int, by_capacity: bool) -> None:
    """On any figures and nodes."""
    if by_capacity:
        raw = {name: min(one, 100) for name, one in raw.items()}
    plugin = NetworkTraffic.__new__(NetworkTraffic)
    plugin.meter = SimpleNamespace(measure=Measure(raw, by_capacity=by_capacity))  # type: ignore[assignment]
    assert_forms_agree(plugin, make_pod(), make_view(**{f"n{at}": "4" for at in range(count)}))
