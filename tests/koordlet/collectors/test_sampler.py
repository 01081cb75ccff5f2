"""The thread that samples, and what becomes of it when the kernel does not let it go."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from koord.util.health import HealthStatus
from koord.util.stop import Stop
from koordlet.collectors.engine.reader import INITIAL_BACKOFF, LeaseRevoked, ReadLease
from koordlet.collectors.engine.sampler import MAX_ABANDONED_THREADS, Sampler
from koordlet.host.resources import MEMINFO, MEMORY_STAT
from koordlet.metriccache import kinds
from koordlet.metriccache.kinds import Cadence, Sample
from koordlet.plugin.testing import SimulatedClock

REAL_LIMIT = 60.0  # seconds that a thread may take


class Groups:
    """A collector that reads memory.stat of some groups, one after the other."""

    name = "groups"
    gates = ()
    cadence = Cadence.USAGE

    def __init__(self, *groups):
        self.groups = groups
        self.rounds = 0
        self.threads = set()

    def collect(self, tick):
        self.rounds += 1
        self.threads.add(threading.current_thread().name)
        for group in self.groups:
            memory = tick.get(MEMORY_STAT, group)
            if memory is not None:
                yield Sample(kinds.POD_MEMORY_USAGE, memory.usage, (group,))

    def families(self):
        return ()


@pytest.fixture
async def running(make_machine):
    """Runs a sampler for collectors; stops it, and lets hung threads go, at the end."""
    machine = make_machine(version=1)
    stop, fifos, tasks = Stop(machine.clock), [], []

    def run(*collectors):
        machine.use(collectors)
        readers = lambda lease, skips: _reader(machine, lease, skips)  # noqa: E731
        periods = {Cadence.USAGE: 1.0}
        sampler = Sampler(machine.sampling, readers, periods, machine.clock, machine.metrics)
        tasks.append(asyncio.create_task(sampler.run(stop)))
        return machine, sampler

    def hang(group):
        """Make reading the memory.stat of a group hang; return what lets it go."""
        machine.host.group(group)
        path = machine.host.paths.cgroup / "memory" / group / "memory.stat"
        path.unlink()
        os.mkfifo(path)
        fifos.append(path)
        return lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    run.hang = hang
    yield run
    stop.set()
    for path in fifos:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


def _reader(machine, lease, skips):
    from koordlet.collectors.engine.reader import Reader
    from koordlet.host.host import Host

    host = Host(machine.host.paths, monotonic=machine.clock.monotonic)
    return Reader(host, lease, skips, machine.clock)


async def test_passes_come_at_a_fixed_rate_on_one_thread_of_their_own(running):
    """The loop is never blocked by the kernel."""
    collector = Groups("a")
    machine, sampler = running(collector)
    for turn in range(1, 4):
        await machine.clock.until(lambda turn=turn: collector.rounds == turn)
        await machine.clock.settle()
        await machine.clock.advance(1.0)

    assert len(collector.threads) == 1
    assert threading.current_thread().name not in collector.threads
    assert sampler.health().status is HealthStatus.OK


async def test_turns_are_missed_while_a_pass_runs_and_counted(running):
    """A pass that takes long is not followed by a burst of passes."""
    go = threading.Event()

    class Slow(Groups):
        def collect(self, tick):
            self.rounds += 1
            go.wait(60)
            return ()

    slow = Slow()
    machine, _ = running(slow)
    await machine.clock.until(lambda: slow.rounds == 1)
    await machine.clock.advance(2.5)
    go.set()
    await machine.clock.until(lambda: slow.rounds == 2)

    assert machine.own_metric("koordlet_sampling_missed_turns_total") == 1
    assert machine.own_metric("koordlet_collector_rounds_total", collector="groups", outcome="late")


async def test_a_read_that_hangs_costs_its_thread_and_the_next_one_skips_the_file(running):
    """The other groups go on; what hung is named; the thread that comes back touches nothing."""
    let_go = running.hang("stuck")
    collector = Groups("a", "stuck", "b")
    machine, sampler = running(collector)
    machine.host.group("a")
    machine.host.group("b")
    await _until_given_up(machine, 1)
    await _advance_until(machine.clock, lambda: ("pod_memory_usage", "b") in machine.samples)

    assert ("pod_memory_usage", "stuck") not in machine.samples
    assert len(collector.threads) == 2
    health = sampler.health()
    assert health.status is HealthStatus.DEGRADED
    assert "stuck/memory.stat" in health.reason
    assert machine.own_metric("koordlet_sampling_threads_given_up") == 1

    samples = dict(machine.samples)
    let_go()
    await machine.clock.until(lambda: machine.own_metric("koordlet_sampling_threads_given_up") == 0)
    assert machine.samples == samples
    assert sampler.health().status is HealthStatus.OK


async def test_a_file_that_hung_is_tried_again_after_a_pause(running):
    """The disk or server behind it may be back."""
    let_go = running.hang("stuck")
    collector = Groups("stuck")
    machine, sampler = running(collector)
    await _until_given_up(machine, 1)
    await _advance_until(machine.clock, lambda: collector.rounds > 1)
    let_go()
    await machine.clock.until(lambda: sampler.health().status is HealthStatus.OK)
    path = machine.host.paths.cgroup / "memory/stuck/memory.stat"
    path.unlink()
    machine.host.group("stuck").use_memory(4096)
    await machine.clock.advance(INITIAL_BACKOFF * 1.1)
    await _advance_until(
        machine.clock, lambda: machine.samples.get(("pod_memory_usage", "stuck")) == 4096
    )


async def test_only_so_many_threads_may_hang(running):
    """Then sampling stops and says so, until one of them comes back."""
    names = [f"stuck{n}" for n in range(MAX_ABANDONED_THREADS + 1)]
    let_go = [running.hang(name) for name in names]
    collector = Groups(*names)
    machine, sampler = running(collector)
    await _until_given_up(machine, MAX_ABANDONED_THREADS)
    await machine.clock.advance(5.0)

    assert collector.rounds == MAX_ABANDONED_THREADS
    assert sampler.health().status is HealthStatus.UNHEALTHY
    assert "stuck0" in sampler.health().reason

    let_go[0]()
    await machine.clock.until(
        lambda: (
            machine.own_metric("koordlet_sampling_threads_given_up") == MAX_ABANDONED_THREADS - 1
        )
    )
    await _advance_until(machine.clock, lambda: collector.rounds == MAX_ABANDONED_THREADS + 1)


async def test_a_pass_that_never_ends_makes_sampling_unhealthy(running):
    """This is what /livez and the systemd watchdog look at."""
    go = threading.Event()

    class Endless(Groups):
        def collect(self, tick):
            self.rounds += 1
            go.wait(60)
            return ()

    endless = Endless()
    machine, sampler = running(endless)
    await machine.clock.until(lambda: endless.rounds == 1)
    await machine.clock.advance(20)

    assert sampler.health().status is HealthStatus.UNHEALTHY
    go.set()


async def _until_given_up(machine, threads: int) -> None:
    """Let as much time pass as it takes until so many threads were given up."""
    await _advance_until(
        machine.clock,
        lambda: machine.own_metric("koordlet_sampling_threads_given_up") == threads,
    )


async def _advance_until(clock: SimulatedClock, condition: Callable[[], bool]) -> None:
    """Pass time in small steps until something holds that a thread does, however slow that is."""
    async with asyncio.timeout(REAL_LIMIT):
        while not condition():
            await clock.advance(0.5)
            await asyncio.sleep(0.001)


def test_a_lease_can_be_revoked_only_while_its_thread_waits_for_the_kernel():
    """From then on exactly one thread works with the shared objects."""
    clock = SimulatedClock()
    lease = ReadLease(clock)
    assert lease.during("file", lambda: clock.tick(5.0) or "text") == ("text", 500.0)
    assert lease.revoke_if_hung(3.0) is None

    def hang():
        clock.tick(2.0)
        revoked.append(lease.revoke_if_hung(3.0))
        clock.tick(1.0)
        revoked.append(lease.revoke_if_hung(3.0))
        revoked.append(lease.revoke_if_hung(3.0))

    revoked = []
    with pytest.raises(LeaseRevoked):
        lease.during("file", hang)
    assert revoked == [None, "file", None]


def test_a_lease_outlives_a_read_that_raises():
    """What could not be read is not what hangs."""
    lease = ReadLease(clock := SimulatedClock())
    with pytest.raises(OSError, match="gone"):
        lease.during("file", lambda: (_ for _ in ()).throw(OSError("gone")))
    clock.tick(5.0)

    assert lease.revoke_if_hung(3.0) is None
    assert lease.during("file", lambda: 7) == (7, 505.0)


def test_a_call_can_hang_like_a_file(machine):
    """Sockets and functions that read several files are watched too."""

    class Calls(Groups):
        def collect(self, tick):
            assert tick.call("socket", lambda: 5) == (5, tick.monotonic)
            return [Sample(kinds.NODE_CPU_USAGE, float(tick.get(MEMINFO) is not None))]

    machine.use([Calls()])
    machine.tick()
    assert machine.value(kinds.NODE_CPU_USAGE) == 1.0
    machine.skips.add("socket")
    machine.tick()
    assert machine.own_metric("koordlet_kernel_reads_total", outcome="hung") == 1
