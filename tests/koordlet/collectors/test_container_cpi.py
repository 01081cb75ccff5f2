"""Cycles and instructions of containers: rounds, turns, and what cannot be counted."""

from types import SimpleNamespace

import pytest

from koordlet.collectors import container_cpi
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.metriccache.kinds import CONTAINER_CPI


class FakeCounters:
    """Counts 1000 cycles and 500 instructions a CPU, or fails; knows which are open."""

    def __init__(self):
        self.open = []
        self.directories = []
        self.grouped = []
        self.refuse = self.fail = None

    def make(self, directory, cpus, events, *, grouped):
        if self.refuse is not None:
            raise self.refuse
        self.open.append(directory)
        self.directories.append(directory.name)
        self.grouped.append(grouped)

        def read():
            if self.fail is not None:
                raise self.fail
            return [1000.0 * len(cpus), 500.0 * len(cpus)]

        return SimpleNamespace(read=read, close=lambda: self.open.remove(directory))


@pytest.fixture
def counters(monkeypatch):
    fake = FakeCounters()
    monkeypatch.setattr("koordlet.host.perf.GroupCounters", fake.make)
    return fake


@pytest.fixture
def counted(machine, counters):
    """A machine of two CPUs with the gate on and one pod; no round has begun."""
    machine.host.write("sys/devices/system/cpu/online", "0-1\n")
    if machine.host.version == 1:
        (machine.host.paths.cgroup / "perf_event").mkdir()
    machine.gates.add("CPICollector")
    machine.run_pod("u1")
    return machine


def cycles(machine, uid="u1"):
    return machine.value(CONTAINER_CPI, uid, f"containerd://c-{uid}", "cycle")


def test_a_window_is_counted_in_each_interval(counted, counters):
    counted.tick()
    assert counters.directories == ["c-u1"]
    for _ in range(9):
        counted.tick()
        assert cycles(counted) is None
    counted.tick()
    assert cycles(counted) == 2000.0
    assert counted.value(CONTAINER_CPI, "u1", "containerd://c-u1", "instruction") == 1000.0
    assert counters.open == []
    labels = {"pod_uid": "u1", "container_id": "containerd://c-u1", "container_name": "c-u1"}
    name = "koordlet_container_cpi"
    assert counted.metric(name, cpi_field="cycles", **labels) == 2000.0
    assert counted.metric(name, cpi_field="instructions", **labels) == 1000.0
    for _ in range(49):
        counted.tick()
    assert counters.directories == ["c-u1"]
    counted.tick()
    assert counters.directories == ["c-u1"] * 2


def test_without_the_gate_nothing_is_counted(machine, counters):
    machine.run_pod("u1")
    for _ in range(70):
        machine.tick()
    assert counters.directories == []
    assert machine.metric("koordlet_container_cpi") is None


def test_counters_are_closed_when_the_gate_is_switched_off(counted, counters):
    counted.tick()
    assert counters.open
    counted.gates.remove("CPICollector")
    counted.tick()
    assert counters.open == []


def test_a_gate_chooses_grouped_counters(counted, counters):
    counted.gates.add("Libpfm4")
    counted.tick()
    assert counters.grouped == [True]


def test_a_container_that_ended_has_no_sample_and_leaks_nothing(counted, counters):
    counted.tick()
    counted.pods = ()
    counted.tick(10)
    assert cycles(counted) is None
    assert counters.open == []


def test_containers_take_turns_when_there_are_too_many(counted, counters, monkeypatch):
    monkeypatch.setattr(container_cpi, "MAX_DESCRIPTORS", 8)
    for number in range(2, 6):
        counted.run_pod(f"u{number}")
    for _ in range(5):
        counted.tick(60)
        counted.tick(10)
    assert len(counters.directories) == 10
    assert {name: counters.directories.count(name) for name in set(counters.directories)} == {
        f"c-u{number}": 2 for number in range(1, 6)
    }


@pytest.mark.parametrize(
    "error",
    [
        Unsupported.here("x", "no such counter"),
        KernelFileError("x", wanted="to count", found="EPERM", hint="run as root"),
    ],
)
def test_what_may_not_be_counted_costs_only_itself(counted, counters, error):
    counters.refuse = error
    counted.tick()
    counted.tick(10)
    assert cycles(counted) is None
    counters.refuse = None
    counted.tick(60)
    counted.tick(10)
    assert cycles(counted) == 2000.0


def test_without_the_hierarchy_the_reason_is_named(machine, counters):
    """On v2 every group is one of the controller perf_event."""
    machine.gates.add("CPICollector")
    machine.host.write("sys/devices/system/cpu/online", "0-1\n")
    machine.run_pod("u1")
    machine.tick()
    assert bool(counters.directories) is (machine.host.version == 2)


def test_counters_that_cannot_be_read_are_closed(counted, counters):
    counted.tick()
    counters.fail = KernelFileError("x", wanted="to read it", found="EIO", hint="wait")
    counted.tick(10)
    assert cycles(counted) is None
    assert counters.open == []
