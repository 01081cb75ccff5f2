"""One pass: isolation, outcomes, and each file read at most once."""

import json

import pytest

from koord.util.health import HealthStatus
from koordlet.collectors.engine.sampler import SamplingPass
from koordlet.host.resources import CPU_THROTTLE, CPU_USAGE, MEMINFO, MEMORY_STAT
from koordlet.metriccache import kinds
from koordlet.metriccache.kinds import Cadence, Sample


class Scripted:
    """A collector that a test controls."""

    gates: tuple[str, ...] = ()
    cadence = Cadence.USAGE

    def __init__(self, name, work=lambda tick: None, gates=()):
        self.name = name
        self.work = work
        self.gates = gates
        self.rounds = 0

    def collect(self, tick):
        self.rounds += 1
        self.work(tick)
        return [Sample(kinds.NODE_CPU_USAGE, 1.0)] if tick.get(MEMINFO) else []

    def families(self):
        return ()


def fail(tick):
    raise RuntimeError("broken")


@pytest.fixture
def logged(capsys):
    """Returns the names of the events that were logged since the last call."""
    return lambda: [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]


def rounds(machine, collector, outcome):
    labels = {"collector": collector, "outcome": outcome}
    return machine.own_metric("koordlet_collector_rounds_total", **labels) or 0


def test_a_collector_that_raises_costs_only_itself(machine):
    """Those after it run, and it is tried again in the next tick."""
    broken, fine = Scripted("broken", fail), Scripted("fine")
    machine.use([broken, fine])
    machine.tick()
    machine.tick()

    assert (broken.rounds, fine.rounds) == (2, 2)
    assert rounds(machine, "broken", "failed") == 2
    assert rounds(machine, "fine", "ok") == 2


def test_a_lasting_failure_is_logged_when_it_starts_and_when_it_ends(machine, logged):
    """Not once per second."""
    collector = Scripted("c", fail)
    machine.use([collector])
    machine.tick()
    machine.tick()
    collector.work = lambda tick: None
    machine.tick()
    machine.tick()

    assert logged() == ["collector.failed", "collector.recovered"]


def test_a_kernel_file_that_fails_is_logged_once_for_all_groups(machine, logged):
    """What fails for one pod often fails for all."""
    groups = [machine.run_pod(f"u{n}").group for n in range(3)]
    name = "memory/memory.stat" if machine.host.version == 1 else "memory.stat"
    for group in groups:
        group.write(name, "")
    machine.tick()
    machine.tick()
    for group in groups:
        group.use_memory(0)
    machine.tick()

    events = [event for event in logged() if event.startswith("kernel_read")]
    assert events == ["kernel_read.failed", "kernel_read.recovered"]


def test_a_slow_collector_is_late(machine):
    """Its samples count, and it shows."""
    machine.use([Scripted("slow", lambda tick: machine.clock.tick(1.5))])
    machine.tick()

    assert rounds(machine, "slow", "late") == 1
    assert machine.value(kinds.NODE_CPU_USAGE) == 1.0
    assert machine.sampling.health()["slow"].status is HealthStatus.DEGRADED


def test_what_this_host_lacks_is_not_a_failure(make_machine):
    """Pod pressure needs PSI in cgroups."""
    machine = make_machine(version=1, psi=False)
    machine.gates.add("PSICollector")
    machine.run_pod("u1")
    machine.tick()

    assert rounds(machine, "pod_pressure", "unsupported") == 1
    assert machine.sampling.health()["pod_pressure"].status is HealthStatus.OK


def test_a_collector_without_any_sample_for_a_malformed_file_has_failed(machine):
    """It is not doing its work, whatever else it could read."""
    machine.host.write("proc/meminfo", b"\x00")
    for _ in range(5):
        machine.tick()

    assert rounds(machine, "node_resource", "failed") == 5
    health = machine.sampling.health()["node_resource"]
    assert health.status is HealthStatus.UNHEALTHY
    assert "meminfo" in health.reason


def test_a_collector_is_unhealthy_after_three_periods_without_work(machine):
    """One bad round is no news; three periods are."""
    collector = Scripted("c")
    machine.use([collector])
    machine.tick()
    collector.work = fail
    machine.tick()
    assert machine.sampling.health()["c"].status is HealthStatus.OK
    machine.tick()
    machine.tick()
    machine.tick()

    assert machine.sampling.health()["c"].status is HealthStatus.UNHEALTHY
    assert machine.sampling.sources() == []


def test_a_gate_switches_a_collector_live(machine):
    """Off: it does not run, shows no figures and has no health."""
    collector = Scripted("c", gates=("A", "B"))
    machine.use([collector])
    machine.tick()
    assert collector.rounds == 0
    machine.gates.add("B")
    machine.tick()
    assert collector.rounds == 1
    assert machine.sampling.sources() == [collector]
    machine.gates.clear()
    machine.tick()
    assert collector.rounds == 1
    assert machine.sampling.sources() == []
    assert machine.sampling.health() == {}


def test_only_collectors_that_are_due_run(machine):
    """Each has its cadence."""
    collector = Scripted("c")
    machine.use([collector])
    machine.sampling.run({Cadence.PSI}, machine.reader)

    assert collector.rounds == 0


def test_each_file_is_read_once_per_tick(machine):
    """Whoever asks, and for whatever value; on v2 cpu.stat holds usage and throttling."""
    group = machine.run_pod("u1").group.path

    def ask(tick):
        for _ in range(3):
            assert tick.get(CPU_USAGE, group) is not None
            assert tick.get(CPU_THROTTLE, group) is not None
            assert tick.get(MEMORY_STAT, group) is not None

    machine.use([Scripted("a", ask), Scripted("b", ask)])
    machine.tick()

    files = 4 if machine.host.version == 1 else 3
    assert machine.own_metric("koordlet_kernel_reads_total", outcome="ok") == files
    assert machine.own_metric("koordlet_held_descriptors") == files


def test_values_of_one_file_carry_its_one_time_of_reading(machine):
    """A rate would be wrong if the second value seemed to be younger."""
    group = machine.run_pod("u1").group.path
    times = []

    def ask(tick):
        times.append(tick.get_at(CPU_USAGE, group)[1])
        machine.clock.tick(0.25)
        times.append(tick.get_at(CPU_THROTTLE, group)[1])

    machine.use([Scripted("a", ask)])
    machine.tick()

    assert times[1] - times[0] == (0.25 if machine.host.version == 1 else 0)


def test_a_pod_that_vanishes_between_listing_and_reading_is_nothing_special(machine, logged):
    """Containers end all the time."""
    machine.run_pod("u1").remove()
    machine.run_pod("u2")
    machine.tick()
    machine.tick()

    assert machine.value(kinds.POD_CPU_USAGE, "u2") == 0
    assert rounds(machine, "pod_resource", "failed") == 0
    assert machine.own_metric("koordlet_kernel_reads_total", outcome="vanished") > 0
    assert logged() == []


def test_descriptors_of_pods_that_are_gone_are_closed(machine):
    """Pods come and go for months."""
    machine.tick()
    machine.tick()
    before = machine.own_metric("koordlet_held_descriptors")
    for n in range(20):
        machine.run_pod(f"u{n}").remove()
        machine.pods = ()
        machine.run_pod(f"v{n}")
        machine.tick()
        machine.pods = ()
        machine.tick()

    assert machine.own_metric("koordlet_held_descriptors") <= before + 1


def test_pods_in_a_new_kubepods_group_are_looked_for(machine):
    """The kubelet may start after us, and with another cgroup root."""
    pod = machine.run_pod("u1")
    machine.tick()
    group = machine.host.group("kubepods-late/podx")
    object.__setattr__(machine.pods[0], "cgroup", group.path)
    machine.pods = tuple(machine.pods)
    machine.run_pod("u2")
    machine.tick()

    assert "kubepods-late" in {layout.root for layout in machine.reader.layouts}
    assert pod is not None


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"1 2 3", b"cpu x\n", b"\n" * 5000])
def test_garbage_in_any_kernel_file_is_survived(machine, content):
    """Nothing raises, and no figure is made of it."""
    machine.gates |= {"PSICollector", "NodeNetworkCollector", "PodNetworkCollector"}
    machine.run_pod("u1")
    for file in machine.host.paths.cgroup.parent.rglob("*"):
        if file.is_file() and file.name != "cgroup.controllers":
            file.write_bytes(content)
    for _ in range(3):
        machine.tick()

    assert {kind for kind, *_ in machine.samples} <= {"node_be"}
    for collector in machine.sampling.sources():
        list(collector.families())


def test_a_pass_object_starts_with_nothing(machine):
    """Before the first tick there are neither figures nor judgements."""
    assert isinstance(machine.sampling, SamplingPass)
    assert machine.sampling.sources() == []
    assert machine.sampling.health() == {}


def test_many_groups_are_read_as_one(machine):
    """In their order; what one cannot say is None, and the other is read all the same."""
    groups = tuple(machine.run_pod(uid).group.path for uid in ("u1", "u2", "u3"))
    gone = machine.run_pod("u4")
    gone.remove()
    seen = []

    def ask(tick):
        single = tick.get_at(CPU_USAGE, groups[1])
        seen.append(tick.get_all(CPU_USAGE, (*groups, gone.group.path)))
        assert seen[-1][1] == single
        assert tick.get_all(CPU_USAGE, groups) == seen[-1][:3]

    machine.use([Scripted("a", ask)])
    machine.tick()
    machine.tick()

    assert [[found is not None for found in column] for column in seen] == [
        [True] * 3 + [False]
    ] * 2
    assert seen[1][0][1] - seen[0][0][1] == 1.0
    assert machine.own_metric("koordlet_kernel_reads_total", outcome="ok") == 8  # with meminfo
