"""Ring files over restarts: what is kept, what is dropped, and what a broken disk costs."""

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from koord.util.clock import stamp
from koordlet.metriccache import ring
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    POD_CPU_USAGE,
    Cadence,
    RetentionClass,
    Sample,
)
from koordlet.metriccache.ring import HEADER_BYTES, unpack_header
from koordlet.plugin.testing.scripted import SimulatedClock

MIB = 1024 * 1024


@pytest.fixture
def metrics(tmp_path):
    return tmp_path / "metrics"


def fill(cache, clock, ticks=10, pods=3):
    """Value of pod n at tick t: t + n / 10."""
    for tick in range(ticks):
        clock.tick(1)
        batch = [Sample(POD_CPU_USAGE, tick + pod / 10, (f"pod{pod}",)) for pod in range(pods)]
        cache.append(stamp(clock), [*batch, Sample(NODE_CPU_USAGE, float(tick))])
    cache.close()


def values(cache, pod):
    return [value for _, value in cache.series(POD_CPU_USAGE, (f"pod{pod}",), 300)]


def test_a_restart_keeps_the_windows(make_cache, clock, metrics):
    """All values, both times, and the ring goes on where it stopped."""
    fill(make_cache(metrics), clock, ticks=400)

    cache = make_cache(metrics)
    assert values(cache, 2) == [tick + 0.2 for tick in range(99, 400)]
    assert cache.newest(NODE_CPU_USAGE) == stamp(clock)
    fill(cache, clock, ticks=5)

    assert values(make_cache(metrics), 1)[-6:] == [399.1, 0.1, 1.1, 2.1, 3.1, 4.1]


def test_files_are_private_to_the_owner_and_group(make_cache, clock, metrics):
    """0640 in 0750, whatever the umask."""
    before = os.umask(0)
    try:
        fill(make_cache(metrics), clock)
    finally:
        os.umask(before)

    assert stat.S_IMODE(metrics.stat().st_mode) == 0o750
    assert {stat.S_IMODE(file.stat().st_mode) for file in metrics.iterdir()} == {0o640}
    assert {file.name for file in metrics.iterdir()} == {
        "node_cpu_usage.ring",
        "pod_cpu_usage.ring",
    }


def test_another_boot_starts_empty(make_cache, clock, metrics):
    """Boot times of another boot mean nothing; the file is dropped with an ordinary log line."""
    fill(make_cache(metrics), clock)

    with capture_logs() as logs:
        cache = make_cache(metrics, boot_id="another")

    assert cache.keys(POD_CPU_USAGE) == []
    assert list(metrics.iterdir()) == []
    assert {(log["event"], log["log_level"]) for log in logs} == {("ring.discarded", "info")}


def test_samples_from_the_future_are_not_of_this_clock(make_cache, clock, metrics):
    """In another time namespace boot time starts over; refusing every tick would be worse."""
    fill(make_cache(metrics), clock)

    with capture_logs() as logs:
        cache = make_cache(metrics, clock=SimulatedClock(boottime=10.0))

    assert cache.keys(POD_CPU_USAGE) == []
    assert "samples from the future" in logs[0]["error"]


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 8)


def _rewrite_header(file: Path, **changes) -> None:
    data = bytearray(file.read_bytes())
    identity, geometry = unpack_header(bytes(data[:HEADER_BYTES]))
    fields = {name: getattr(geometry, name) for name in ("columns", "rows", "key_bytes")}
    data[:HEADER_BYTES] = ring.pack_header(identity, ring.RingGeometry(**fields | changes))
    file.write_bytes(data)


def _sparse(file: Path) -> None:
    os.truncate(file, 1024 * MIB)


def _as_version_2(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[8] = 2
    file.write_bytes(data)


def _as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _as_link(file: Path) -> None:
    file.rename(file.with_name("victim"))
    file.symlink_to("victim")


def _all_columns(file: Path) -> None:
    data = bytearray(file.read_bytes())
    _, geometry = unpack_header(bytes(data[:HEADER_BYTES]))
    data[geometry.cells_at :] = b"\xaa" * (len(data) - geometry.cells_at)
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (_truncate, "bytes instead of"),
        (lambda file: os.truncate(file, 0), "only 0 bytes"),
        (lambda file: file.write_bytes(b"\x00" * 4096), "not a ring file"),
        (lambda file: file.write_bytes(os.urandom(4096)), "not a ring file"),
        (_as_version_2, "version 2 instead of 1"),
        (lambda file: _rewrite_header(file, columns=2**32 - 1), "bytes instead of"),
        (lambda file: _rewrite_header(file, rows=2**32 - 1, key_bytes=2**32 - 8), "instead of"),
        (lambda file: _rewrite_header(file, rows=0), "geometry"),
        (lambda file: file.write_bytes((file.parent / "node_cpu_usage.ring").read_bytes()),
         "data of node_cpu_usage"),
        (_sparse, "bytes, more than"),
        (_as_fifo, "something else than a regular file"),
        (_as_link, "a link, which is not followed"),
        (_all_columns, "no readable column"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_discarded_and_named(make_cache, clock, metrics, spoil, found):
    """Only that kind starts empty; the log line says what was found; recording goes on."""
    fill(make_cache(metrics), clock)
    spoil(metrics / "pod_cpu_usage.ring")

    with capture_logs() as logs:
        cache = make_cache(metrics)

    assert cache.keys(POD_CPU_USAGE) == []
    assert cache.aggregate(NODE_CPU_USAGE, (), 300).count == 10
    (log,) = logs
    assert (log["event"], log["kind"], log["log_level"]) == (
        "ring.discarded",
        "pod_cpu_usage",
        "warning",
    )
    assert found in log["error"]
    fill(cache, clock)
    assert values(make_cache(metrics), 0) == [float(tick) for tick in range(10)]


def test_huge_files_are_not_read(make_cache, clock, metrics):
    """A sparse gigabyte costs neither memory nor time."""
    metrics.mkdir()
    with (metrics / "pod_cpu_usage.ring").open("wb") as file:
        file.truncate(1024 * MIB)

    cache = make_cache(metrics)

    assert cache.stats().file_bytes == 0


@pytest.mark.parametrize("column", [0, 4, 9])
def test_a_flipped_bit_costs_one_column(make_cache, clock, metrics, column):
    """The other nine ticks of all series stay, and new ones join them."""
    fill(make_cache(metrics), clock)
    file = metrics / "pod_cpu_usage.ring"
    data = bytearray(file.read_bytes())
    _, geometry = unpack_header(bytes(data[:HEADER_BYTES]))
    data[geometry.cells_at + (column + 1) * geometry.rows * 8 + 8] ^= 0x10  # slots start with 1
    file.write_bytes(data)

    with capture_logs() as logs:
        cache = make_cache(metrics)

    kept = [tick for tick in range(10) if tick != column]
    assert [values(cache, pod) for pod in range(3)] == [
        [tick + pod / 10 for tick in kept] for pod in range(3)
    ]
    assert cache.aggregate_all(POD_CPU_USAGE, 300)[("pod0",)].count == 9
    assert logs[0]["event"] == "ring.damaged"
    assert cache.stats().dropped["columns"] == 1

    fill(cache, clock, ticks=400)
    assert values(make_cache(metrics), 0) == [float(tick) for tick in range(99, 400)]


def test_a_flipped_bit_in_the_directory_costs_one_row(make_cache, clock, metrics):
    """The other series stay whole; the lost one starts again without inheriting its old cells."""
    fill(make_cache(metrics), clock)
    file = metrics / "pod_cpu_usage.ring"
    data = bytearray(file.read_bytes())
    _, geometry = unpack_header(bytes(data[:HEADER_BYTES]))
    data[HEADER_BYTES + geometry.entry_bytes + 16] ^= 0x01  # row 1, first byte of its key
    file.write_bytes(data)

    cache = make_cache(metrics)

    assert cache.keys(POD_CPU_USAGE) == [("pod0",), ("pod2",)]
    assert cache.stats().dropped["rows"] == 1
    assert values(cache, 2) == [tick + 0.2 for tick in range(10)]
    fill(cache, clock, ticks=2)
    cache = make_cache(metrics)
    assert values(cache, 1) == [0.1, 1.1]
    assert cache.aggregate_all(POD_CPU_USAGE, 300)[("pod1",)].avg() == pytest.approx(0.6)


def test_every_single_byte_may_be_wrong(make_cache, clock, metrics):
    """Whatever byte of a file changes: no exception, and no value that was not written."""
    limits = {"retentions": dict.fromkeys(RetentionClass, 6.0)}
    fill(make_cache(metrics, **limits), clock, ticks=8, pods=2)
    file = metrics / "pod_cpu_usage.ring"
    good = file.read_bytes()
    written = {f"pod{pod}": {tick + pod / 10 for tick in range(8)} for pod in range(2)}
    for at in range(0, len(good), 3):
        data = bytearray(good)
        data[at] ^= 0x41
        file.write_bytes(data)
        cache = make_cache(metrics, **limits)
        for (pod,), found in cache.aggregate_all(POD_CPU_USAGE, 300).items():
            assert {value for _, value in found.points()} <= written[pod]
        cache.close()


def test_growing_keeps_history_and_replaces_the_file(make_cache, clock, metrics):
    """More series and longer keys than the file has room for."""
    cache = make_cache(metrics)
    for tick in range(60):
        clock.tick(1)
        keys = [f"{'k' * (n + 1)}" for n in range(tick + 1)]
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, float(tick), (key,)) for key in keys])
    cache.close()

    cache = make_cache(metrics)

    assert len(cache.keys(POD_CPU_USAGE)) == 60
    for n in range(60):
        found = cache.series(POD_CPU_USAGE, ("k" * (n + 1),), 300)
        assert [value for _, value in found] == [float(tick) for tick in range(n, 60)]
    assert [file.name for file in metrics.iterdir()] == ["pod_cpu_usage.ring"]


def test_after_many_short_lived_series_the_file_shrinks(make_cache, clock, metrics):
    """Those that stay keep their history, although they get other rows."""
    limits = {"retentions": dict.fromkeys(RetentionClass, 20.0)}
    cache = make_cache(metrics, **limits)
    steady = [f"steady{n}" for n in range(5)]
    sizes = []
    for tick in range(60):
        clock.tick(1)
        brief = [f"brief{n}" for n in range(200)] if tick < 3 else []
        values = {key: tick + n / 10 for n, key in enumerate(steady) if tick >= 2}
        values |= dict.fromkeys(brief, -1.0)
        cache.append(stamp(clock), [Sample(POD_CPU_USAGE, v, (k,)) for k, v in values.items()])
        sizes.append((metrics / "pod_cpu_usage.ring").stat().st_size)
    for again in (cache, None):
        cache = again or make_cache(metrics, **limits)
        assert cache.stats().file_bytes == sizes[-1] < sizes[10] / 5
        assert cache.problems() == []
        found = cache.aggregate_all(POD_CPU_USAGE, 20)
        assert set(found) == {(key,) for key in steady}
        for n, key in enumerate(steady):
            values = [value for _, value in found[(key,)].points()]
            assert values == pytest.approx([tick + n / 10 for tick in range(60 - len(values), 60)])
            assert len(values) >= 20
        cache.close()


def test_other_intervals_and_retentions_take_the_history_over(make_cache, clock, metrics):
    """A restart with other flags resizes the rings and keeps what fits."""
    fill(make_cache(metrics), clock, ticks=400)

    cache = make_cache(
        metrics,
        intervals=dict.fromkeys(Cadence, 2.0),
        retentions=dict.fromkeys(RetentionClass, 60.0),
    )

    assert values(cache, 0)[-1] == 399
    assert len(values(cache, 0)) == 34  # columns: 60 s by 2 s, and 4 spare


def test_left_over_files_are_removed(make_cache, clock, metrics):
    """Drafts of a killed process and kinds that no longer exist; nothing else is touched."""
    metrics.mkdir()
    for name in ("pod_cpu_usage.ring.new", "bygone.ring", "notes.txt"):
        (metrics / name).write_text("x")

    make_cache(metrics)

    assert [file.name for file in metrics.iterdir()] == ["notes.txt"]


def test_a_symlink_is_not_followed(make_cache, clock, metrics, tmp_path):
    """The file that it points to stays as it is."""
    metrics.mkdir()
    (tmp_path / "precious").write_text("precious")
    (metrics / "pod_cpu_usage.ring").symlink_to(tmp_path / "precious")

    fill(make_cache(metrics), clock)

    assert (tmp_path / "precious").read_text() == "precious"
    assert values(make_cache(metrics), 0) == [float(tick) for tick in range(10)]


def test_a_full_disk_means_memory_and_a_message(make_cache, clock, metrics, monkeypatch):
    """Space is reserved first, so it is an error and not a SIGBUS; it heals by itself."""
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", _no_space)
        with capture_logs() as logs:
            cache = make_cache(metrics)
            for tick in range(5):
                clock.tick(1)
                cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, float(tick))])
        assert cache.last(NODE_CPU_USAGE) == 4
        (problem,) = cache.problems()
        assert "node_cpu_usage is kept in memory only" in problem
        assert os.strerror(errno.ENOSPC) in problem
        assert [log["event"] for log in logs] == ["metriccache.degraded"]
        assert list(metrics.iterdir()) == []

    clock.tick(600)
    cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 5.0)])

    assert cache.problems() == []
    cache.close()
    assert make_cache(metrics).aggregate(NODE_CPU_USAGE, (), 1800).count == 6


def test_a_disk_that_fills_while_growing_keeps_all_series(make_cache, clock, metrics, monkeypatch):
    """The grown ring goes on in memory; the smaller file stays valid for a restart."""
    cache = make_cache(metrics)
    clock.tick(1)
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 1.0, ("pod0",))])
    monkeypatch.setattr(os, "posix_fallocate", _no_space)
    clock.tick(1)
    cache.append(stamp(clock), [Sample(POD_CPU_USAGE, 2.0, (f"pod{n}",)) for n in range(100)])

    assert values(cache, 0) == [1.0, 2.0]
    assert len(cache.keys(POD_CPU_USAGE)) == 100
    assert len(cache.problems()) == 1
    cache.close()
    monkeypatch.undo()
    assert values(make_cache(metrics), 0) == [1.0]


@pytest.mark.parametrize("kind", ["file", "link", "open to all"])
def test_without_a_directory_the_cache_works_in_memory(make_cache, clock, tmp_path, kind):
    """One that cannot be used, or must not be, degrades; it does not stop the daemon."""
    taken = tmp_path / "taken"
    if kind == "file":
        taken.write_text("")
    elif kind == "link":
        taken.symlink_to(tmp_path)
    else:
        taken.mkdir()
        taken.chmod(0o777)

    cache = make_cache(taken)
    clock.tick(1)
    cache.append(stamp(clock), [Sample(NODE_CPU_USAGE, 1.0)])

    assert cache.last(NODE_CPU_USAGE) == 1.0
    assert str(tmp_path / "taken") in cache.problems()[0]


def _no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs, which needs root")
def test_a_really_full_disk_kills_no_process(make_cache, clock, tmp_path):
    """On a tmpfs without space a mapped write would be SIGBUS; it must not come to that."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=750", "tmpfs", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no CAP_SYS_ADMIN here")
    try:
        cache = make_cache(small / "metrics")
        for _ in range(400):
            clock.tick(1)
            pods = [Sample(POD_CPU_USAGE, 1.0, (f"pod{n}",)) for n in range(100)]
            cache.append(stamp(clock), [*pods, Sample(NODE_CPU_USAGE, 1.0)])

        assert len(cache.problems()) == 2
        assert cache.aggregate(NODE_CPU_USAGE, (), 300).count == 301
        assert len(cache.aggregate_all(POD_CPU_USAGE, 300)) == 100
        cache.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)
