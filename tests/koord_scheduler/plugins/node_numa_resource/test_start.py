"""A table of machines that is filled a few nodes at a time, as at the start of the daemon."""

from random import Random

import pytest

from koord.cluster.kinds import NODE
from koord_scheduler.plugin.testing import FakeCluster, fake_cluster
from koord_scheduler_plugins.node_numa_resource.columns import MachineTable
from koord_scheduler_plugins.node_numa_resource.topology import read_machine
from tests.support.scheduler.numa import topology_object

SHAPES = ("2x1x4x2", "1x1x4x2", "2x1x4x1")
NAMES = ("free", "whole", "cores", "threads", "left", "most")


def by_name(table: MachineTable, cluster: FakeCluster) -> dict[str, tuple[object, ...]]:
    view = cluster.state.view()
    return {
        view.node(row).name: tuple(table.column(name)[row].item() for name in NAMES)
        for row in range(len(view))
    }


@pytest.mark.parametrize("seed", range(20))
def test_what_changes_while_nodes_are_taken_over_is_not_missed(seed):
    """Nodes come and go, and reports change; in the end all is as if it was read at once."""
    chance, cluster, table, reports = Random(seed), fake_cluster(), MachineTable(), {}

    def report(name: str) -> None:
        new = read_machine(topology_object(name, chance.choice(SHAPES)))
        table.take_report(reports.get(name), new)
        reports[name] = new

    for number in range(30):
        cluster.node(f"n{number}", cpu=16)
    for number in range(30):
        report(f"n{number}")
    for step in range(12):
        table.follow(cluster.state.view(), 4)
        happens = chance.choice(["report", "remove", "add", "label", "nothing"])
        there = sorted(cluster.state.snapshot.node_names())
        if happens == "report":
            report(chance.choice(there))
        elif happens == "remove":
            cluster.state.remove(NODE, chance.choice(there))
        elif happens == "add":
            cluster.node(f"more{step}", cpu=16)
            report(f"more{step}")
        elif happens == "label":
            cluster.node(chance.choice(there), cpu=16, labels={"step": str(step)})
    while not table.follow(cluster.state.view(), 4):
        pass

    at_once = MachineTable()
    for name in sorted(cluster.state.snapshot.node_names()):
        at_once.take_report(None, reports[name])
    at_once.follow(cluster.state.view())
    assert by_name(table, cluster) == by_name(at_once, cluster)


def test_each_node_is_looked_at_once(monkeypatch):
    """50,000 nodes, 32 at a time, were looked at 39 million times."""
    cluster, table, looks = fake_cluster(), MachineTable(), []
    for number in range(200):
        cluster.node(f"n{number}", cpu=16)
    whole = MachineTable._is_current

    def counted(self, machine, nodes, row):
        looks.append(row)
        return whole(self, machine, nodes, row)

    monkeypatch.setattr(MachineTable, "_is_current", counted)

    steps = 1
    while not table.follow(cluster.state.view(), 4):
        steps += 1

    assert steps == 50
    assert sorted(looks) == list(range(200))
