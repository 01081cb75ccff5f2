"""Guarantees of the cache to writers and readers, in memory."""

import math
import threading

import pytest

from koord.util.clock import Stamp, stamp
from koordlet.metriccache.keys import UnknownSeries, no_key
from koordlet.metriccache.kinds import (
    CONTAINER_PSI,
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_PSI,
    POD_CPU_USAGE,
    POD_PSI,
    Kind,
    RetentionClass,
    Sample,
)

MIB = 1024 * 1024
MADE_UP = Kind("made_up", "bytes", "nothing", no_key)


def test_one_invalid_sample_is_left_out_alone(cache, clock):
    """The rest of the tick is stored; stats counts those that were not."""
    cache.append(
        stamp(clock),
        [
            Sample(NODE_CPU_USAGE, math.nan),
            Sample(NODE_MEMORY_USAGE, math.inf),
            Sample(POD_CPU_USAGE, 1.0, ()),
            Sample(POD_CPU_USAGE, 1.0, ("a", "b")),
            Sample(POD_CPU_USAGE, 1.0, ("nul\0inside",)),
            Sample(POD_CPU_USAGE, 1.0, ("x" * 2000,)),
            Sample(NODE_PSI, 1.0, ("io", "avg10", "some")),
            Sample(MADE_UP, 1.0),
            Sample(POD_CPU_USAGE, 2.0, ("good",)),
        ],
    )

    assert cache.last_values(POD_CPU_USAGE) == {("good",): 2.0}
    assert cache.last(NODE_CPU_USAGE) is None
    assert cache.stats().dropped["invalid"] == 7
    assert cache.stats().dropped["unknown_kind"] == 1


@pytest.mark.parametrize("key", ["", "ümlaut", "\udcff", "a" * 1024])
def test_any_plain_string_is_a_key(cache, clock, key):
    """Cgroup names need not be valid text."""
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, (key,))])

    assert cache.last(POD_CPU_USAGE, key) == 1.0


@pytest.mark.parametrize("step", [0.0, -1.0, -3600.0])
def test_a_tick_that_is_not_newer_is_refused(cache, feed, clock, step):
    """Windows stay in time order, and the refusal is counted."""
    feed(cache, NODE_CPU_USAGE, [1.0])

    cache.append(Stamp(clock.wall(), clock.boottime() + step), [Sample(NODE_CPU_USAGE, 5.0)])

    assert cache.last(NODE_CPU_USAGE) == 1.0
    assert cache.stats().dropped["late"] == 1


def test_last_is_at_most_two_intervals_old(cache, feed, clock):
    """A reader that acts on the newest value must not act on an old one."""
    feed(cache, NODE_CPU_USAGE, [1.5])
    clock.tick(2)
    assert cache.last(NODE_CPU_USAGE) == 1.5
    assert cache.last_values(NODE_CPU_USAGE) == {(): 1.5}
    newest = cache.newest(NODE_CPU_USAGE)

    clock.tick(0.1)

    assert cache.last(NODE_CPU_USAGE) is None
    assert cache.last_values(NODE_CPU_USAGE) == {}
    assert cache.newest(NODE_CPU_USAGE) == newest


def test_newest_returns_both_times_of_a_series(cache, clock):
    """The report's updateTime comes from here, per series and not per table."""
    clock.tick(1)
    first = stamp(clock)
    cache.append(first, [Sample(POD_CPU_USAGE, 1.0, ("a",)), Sample(POD_CPU_USAGE, 1.0, ("b",))])
    clock.tick(1)
    second = stamp(clock)
    cache.append(second, [Sample(POD_CPU_USAGE, 1.0, ("b",))])

    assert cache.newest(POD_CPU_USAGE, "a") == first
    assert cache.newest(POD_CPU_USAGE, "b") == second
    assert cache.newest(POD_CPU_USAGE, "c") is None
    assert cache.newest(NODE_CPU_USAGE) is None


def test_last_values_takes_each_series_newest(cache, clock):
    """A series that missed the newest tick still shows, with its own value."""
    for tick, keys in enumerate(["ab", "b"]):
        clock.tick(1)
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, float(tick), (key,)) for key in keys])

    assert cache.last_values(POD_CPU_USAGE) == {("a",): 0.0, ("b",): 1.0}


def test_match_selects_by_any_subset_of_properties(cache, clock):
    """Equality on the properties given, all series when none is."""
    keys = [("pod1", "cpu", "10", "some"), ("pod1", "io", "10", "full"),
            ("pod2", "cpu", "10", "some")]  # fmt: skip
    cache.append(stamp(clock), [Sample(POD_PSI, 1.0, key) for key in keys])

    assert cache.match(POD_PSI, pod_uid="pod1") == keys[:2]
    assert cache.match(POD_PSI, psi_resource="cpu", psi_degree="some") == [keys[0], keys[2]]
    assert cache.match(POD_PSI) == keys
    assert cache.match(CONTAINER_PSI) == []


def test_asking_for_what_cannot_exist_is_an_error(cache):
    """A typo in code must not look like missing data."""
    with pytest.raises(UnknownSeries, match="container_uid"):
        cache.match(POD_PSI, container_uid="x")
    with pytest.raises(UnknownSeries, match="be_resource"):
        cache.last(NODE_BE, "cpu")
    with pytest.raises(UnknownSeries, match="made_up"):
        cache.aggregate_all(MADE_UP, 60)


def test_values_without_history_are_kept_by_name(cache):
    """The last one wins; absent means not collected yet."""
    assert cache.get("node_numa_info") is None
    cache.put("node_numa_info", [0, 1])
    cache.put("node_numa_info", [0])

    assert cache.get("node_numa_info") == [0]


def test_a_tick_of_two_values_for_one_series_keeps_the_later(cache, clock):
    """One column holds one value per series."""
    cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 1.0), Sample(NODE_CPU_USAGE, 2.0)])

    assert cache.last(NODE_CPU_USAGE) == 2.0


def test_the_whole_window_asked_for_is_there(cache, feed, clock):
    """30 minutes of 1 s samples, first and last included, long after the ring wrapped."""
    feed(cache, NODE_CPU_USAGE, [float(n) for n in range(5000)])

    found = cache.aggregate(NODE_CPU_USAGE, (), 1800)

    assert (found.count, found.span, found.last) == (1801, 1800, 4999)
    assert found.avg() == pytest.approx(4999 - 900)


def test_a_longer_retention_keeps_what_is_there_and_more_from_now_on(cache, feed):
    """A NodeMetric spec that asks for longer windows gets them without a restart."""
    feed(cache, POD_CPU_USAGE, [1.0] * 400, ("p",))
    cache.set_retention(RetentionClass.POD, 600)
    feed(cache, POD_CPU_USAGE, [1.0] * 400, ("p",))

    assert cache.aggregate(POD_CPU_USAGE, ("p",), 600).count == 601


def test_a_shorter_retention_keeps_the_newest(cache, feed):
    """Memory goes down and the newest samples stay."""
    feed(cache, POD_CPU_USAGE, [float(n) for n in range(300)], ("p",))
    before = cache.stats().file_bytes
    cache.set_retention(RetentionClass.POD, 60)

    found = cache.aggregate(POD_CPU_USAGE, ("p",), 60)

    assert (found.count, found.last) == (61, 299)
    assert cache.stats().file_bytes < before / 2


def test_retention_ends_at_one_hour(cache, feed):
    """A spec that asks for a day does not cost a day of memory."""
    cache.set_retention(RetentionClass.NODE, 86400)
    feed(cache, NODE_CPU_USAGE, [1.0])

    assert cache.stats().file_bytes < 3700 * (8 + 32) + 1000


def test_an_idle_series_gives_its_row_to_a_new_one(cache, clock):
    """The new series starts empty: it must not inherit a single value."""
    for tick in range(2000):
        clock.tick(1)
        generation = f"g{tick // 400}"
        cache.append(
            stamp(clock),
            [Sample(POD_CPU_USAGE, 1.0, ("steady",)), Sample(POD_CPU_USAGE, tick, (generation,))],
        )

    assert len(cache.keys(POD_CPU_USAGE)) <= 3
    found = cache.aggregate_all(POD_CPU_USAGE, 300)
    assert set(found) == {("steady",), ("g4",)}
    assert min(value for _, value in found[("g4",)].points()) >= 1600


def test_a_reused_row_shows_nothing_of_its_earlier_owner(make_cache, clock):
    """Right after the change of hands the ring still holds the old owner's cells."""
    cache = make_cache(retentions=dict.fromkeys(RetentionClass, 8.0))
    for tick in range(12):
        clock.tick(1)
        key = "old" if tick < 2 else "filler" if tick < 11 else "new"
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, float(tick), (key,))])

    assert cache.series(POD_CPU_USAGE, ("new",), 300) == [(clock.boottime(), 11.0)]
    assert cache.aggregate_all(POD_CPU_USAGE, 300)[("new",)].avg() == 11.0
    assert ("old",) not in cache.keys(POD_CPU_USAGE)


def test_a_full_table_refuses_new_series_only(make_cache, clock):
    """Memory is bounded; those that have a row go on, and the problem is named until it is over."""
    cache = make_cache(max_kind_bytes=MIB // 4)
    for _ in range(3):
        clock.tick(1)
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, (f"p{n}",)) for n in range(500)])

    kept = len(cache.keys(POD_CPU_USAGE))
    assert 50 < kept < 200
    assert len(cache.last_values(POD_CPU_USAGE)) == kept
    assert cache.stats().file_bytes <= MIB // 4
    assert cache.stats().dropped["refused"] == 3 * (500 - kept)
    assert cache.problems() == [f"pod_cpu_usage is full: {500 - kept} series left out"]

    clock.tick(1)
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, ("p0",))])
    assert cache.problems() == []


def test_a_retention_beyond_the_bound_costs_history_not_series(make_cache, feed, clock):
    """More history than fits is cut, and no series in use is lost."""
    cache = make_cache(max_kind_bytes=MIB // 4)
    keys = [(f"p{n}",) for n in range(60)]
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, key) for key in keys])

    cache.set_retention(RetentionClass.POD, 3600)

    assert cache.keys(POD_CPU_USAGE) == keys
    assert cache.stats().file_bytes <= MIB // 4


def test_threads_may_write_and_read_at_once(cache, clock):
    """The sampling thread appends while report and exposition threads aggregate."""
    errors, done = [], threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                for found in cache.aggregate_all(POD_CPU_USAGE, 300).values():
                    assert found.avg() == 7.0
                    assert found.percentile(50) == 7.0
                cache.last_values(POD_CPU_USAGE)
        except Exception as err:
            errors.append(err)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for tick in range(400):
        clock.tick(1)
        batch = [Sample(POD_CPU_USAGE, 7.0, (f"p{n}",)) for n in range(tick // 8 + 1)]
        cache.append(stamp(clock), batch)
    done.set()
    for reader in readers:
        reader.join()

    assert errors == []
    assert len(cache.last_values(POD_CPU_USAGE)) == 50
