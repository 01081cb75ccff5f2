"""Two NUMA nodes: `tests/vm/run.sh --numa`."""

from collections.abc import Iterator

import pytest

from koord.api.nodemetric import NodeMetricSpec
from koord.util.clock import SystemClock
from koordlet.host import resources as r
from koordlet.host.topology import numa_node_ids
from koordlet.metriccache import kinds as k
from koordlet.reporter.status import ReportInputs, build_status

from ..conftest import MIB, REAL, Tree, burn, touch
from ..sampling import Node

POD = "kubepods/burstable/pod1"

pytestmark = pytest.mark.skipif(
    len(numa_node_ids(REAL.sys)) < 2, reason="needs two NUMA nodes: tests/vm/run.sh --numa"
)


@pytest.fixture
def node(tree: Tree) -> Iterator[Node]:
    """A pod that may use CPU and memory of the second NUMA node only, and did so."""
    group = tree.make(f"{POD}/c1")
    for file, value in (("cpuset.cpus", "1"), ("cpuset.mems", "1")):
        (tree.base / POD / file).write_text(value)
    node = Node(tree)
    process = group.run(touch(64 * MIB))
    node.tick()
    process.do(burn(0.5))
    node.tick()
    yield node
    node.close()


def test_memory_is_counted_where_it_is(node: Node) -> None:
    """All of the pod's is on the second node, and the system's share leaves it out."""
    usage = node.reader.host.read(r.MEMORY_NUMA, POD)
    assert usage[0] < 8 * MIB
    assert 63 * MIB < usage[1] < 84 * MIB
    for numa in ("0", "1"):
        whole = node.value(k.NODE_NUMA_MEMORY_USAGE, numa)
        system = node.value(k.SYS_NUMA_MEMORY_USAGE, numa)
        assert whole - system == pytest.approx(usage[int(numa)], abs=4 * MIB)


def test_cpu_is_counted_where_it_is(node: Node) -> None:
    """Each node's is that of its CPUs; together they are the whole."""
    assert node.reader.get(r.CPUSET_CPUS, f"{POD}/c1") == {1}
    used = [node.value(k.NODE_NUMA_CPU_USAGE, numa) for numa in ("0", "1")]
    assert used[1] >= node.value(k.POD_CPU_USAGE, "1") * 0.8
    assert sum(used) == pytest.approx(node.value(k.NODE_CPU_USAGE), rel=0.1, abs=0.05)


def test_the_node_metric_has_both(node: Node) -> None:
    """numaUsages by ascending id, each with the usage of the node and of the system."""
    status = build_status(
        node.cache,
        ReportInputs(
            spec=NodeMetricSpec(),
            pods=node.pods,
            host_applications=(),
            now=SystemClock().boottime(),
            oldest=60.0,
        ),
    )

    usages = status.to_json()["nodeMetric"]["numaUsages"]
    assert [usage["numaNodeID"] for usage in usages] == [0, 1]
    for usage in usages:
        assert usage["nodeUsage"]["resources"].keys() == {"cpu", "memory"}
        assert usage["systemUsage"]["resources"].keys() == {"cpu", "memory"}
