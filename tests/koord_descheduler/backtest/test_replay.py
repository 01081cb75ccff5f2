"""Records of hours of a scripted cluster, played under the same and under other configurations."""

from pathlib import Path

import pytest

from koord.component.plugins.discovery import discover
from koord_descheduler.backtest.player import HotRule, Replay, play, summarize
from tests.support.descheduler.backtest import (
    CORES,
    ScriptedCluster,
    config_text,
    configuration,
    scripted_registry,
)

HOT = (HotRule({"cpu": 75.0}),)


async def recorded(path: Path, text: str, *, graceful: bool = False) -> ScriptedCluster:
    cluster = ScriptedCluster(path, text, scripted_registry(), graceful=graceful)
    await cluster.live(4.0)
    return cluster


async def played(path: Path, text: str) -> Replay:
    registry = scripted_registry()
    return await play(path, summarize(path), configuration(text, registry), registry, HOT)


@pytest.mark.parametrize("graceful", [False, True])
async def test_the_recorded_configuration_has_the_recorded_evictions(
    tmp_path: Path, graceful: bool
) -> None:
    """The same pods from the same nodes at the same times; and no node is hot for longer."""
    path = tmp_path / "record"
    cluster = await recorded(path, config_text(75), graceful=graceful)
    assert len(cluster.evicted) > 10

    replay = await played(path, summarize(path).header.config)

    assert [(round(one.at), one.pod, one.node) for one in replay.evictions] == [
        (round(at), pod, node) for at, pod, node in cluster.evicted
    ]
    assert all(one.is_recorded for one in replay.evictions)
    assert replay.hot_played == replay.hot_recorded > 0
    assert not replay.errors
    assert not replay.unplaced
    assert replay.cycles == 120
    assert replay.hours == pytest.approx(4.0)


@pytest.mark.parametrize("graceful", [False, True])
async def test_without_evictions_the_cluster_is_as_it_would_have_been(
    tmp_path: Path, graceful: bool
) -> None:
    """Each pod that the record moves stays, with the load that its replacement then had."""
    path, other = tmp_path / "record", tmp_path / "truth"
    cluster = await recorded(path, config_text(75), graceful=graceful)
    await recorded(other, config_text(999))

    replay = await played(path, config_text(999))
    truth = await played(other, config_text(999))

    assert cluster.evicted
    assert not replay.evictions
    assert replay.hot_played > 1.5 * replay.hot_recorded
    assert replay.hot_played == pytest.approx(truth.hot_recorded, rel=0.02)


async def test_evictions_that_the_record_lacks_move_load_to_where_there_is_room(
    tmp_path: Path,
) -> None:
    """Much as it was when they were real; only the places of the moved pods differ."""
    path, other = tmp_path / "record", tmp_path / "truth"
    await recorded(path, config_text(999))
    truth = await recorded(other, config_text(75))

    replay = await played(path, config_text(75))
    real = await played(other, config_text(75))

    assert len(replay.evictions) == pytest.approx(len(truth.evicted), rel=0.4)
    assert replay.hot_played < 0.6 * replay.hot_recorded
    assert replay.hot_played == pytest.approx(real.hot_recorded, rel=0.4)
    assert all(one.target not in ("", one.node) for one in replay.evictions)
    assert not any(one.is_recorded for one in replay.evictions)


async def test_a_bolder_configuration_goes_on_from_what_it_has_moved(tmp_path: Path) -> None:
    """Some evictions are the record's, others are not, and pods are moved more than once."""
    path = tmp_path / "record"
    cluster = await recorded(path, config_text(80))

    replay = await played(path, config_text(65))

    assert len(replay.evictions) > len(cluster.evicted)
    assert {one.is_recorded for one in replay.evictions} == {True, False}
    assert replay.hot_played < replay.hot_recorded


async def test_low_node_load_has_the_recorded_evictions(tmp_path: Path) -> None:
    """The plugin itself, with its counters of abnormal rounds, limits and ledger."""
    text = config_text(
        plugin="LowNodeLoad",
        highThresholds={"cpu": 70},
        lowThresholds={"cpu": 45},
        anomalyCondition={"consecutiveAbnormalities": 2, "timeout": "5m"},
    )
    path, registry = tmp_path / "record", scripted_registry()
    assert discover(registry) == []
    cluster = ScriptedCluster(path, text, registry)
    await cluster.live(4.0)
    assert len(cluster.evicted) > 10

    again = scripted_registry()
    discover(again)
    replay = await play(path, summarize(path), configuration(text, again), again, HOT)

    assert [(round(one.at), one.pod, one.node) for one in replay.evictions] == [
        (round(at), pod, node) for at, pod, node in cluster.evicted
    ]
    assert replay.hot_played == replay.hot_recorded


async def test_a_pod_that_fits_nowhere_is_named(tmp_path: Path) -> None:
    """And its load is nowhere, until there is room."""
    path = tmp_path / "record"
    cluster = ScriptedCluster(path, config_text(999), scripted_registry())
    for name in ("n1", "n2", "n3", "n4", "n5"):
        cluster.fake.node(name, cpu=CORES, memory="64Gi", unschedulable=True)
    await cluster.live(0.2)

    replay = await played(path, config_text(75))

    assert replay.evictions
    assert set(replay.unplaced) <= {one.pod for one in replay.evictions}
    assert replay.unplaced
    assert replay.evictions[0].target == ""


async def test_a_replay_says_which_hardware_it_does_not_know(tmp_path: Path) -> None:
    """A record has no Device and NodeResourceTopology objects."""
    path = tmp_path / "record"
    cluster = ScriptedCluster(path, config_text(999), scripted_registry())
    annotations = {
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"0-1"}',
        "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0}]}',
    }
    cluster.fake.pod("bound", "n1", cpu=2, annotations=annotations)
    await cluster.live(0.2)

    assert [text.partition(",")[0] for text in (await played(path, config_text(75))).unknown] == [
        "1 pods have CPUs of their own"
    ]
