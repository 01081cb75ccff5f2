"""The node's CPUs, NUMA nodes and disks, read once a minute."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric

from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koordlet.collectors.engine.collector import StatusCounter, Tick
from koordlet.host.paths import HostPaths
from koordlet.host.storage import LocalStorage, read_local_storage
from koordlet.host.topology import NumaNode, read_basics, read_numa_nodes, read_topology
from koordlet.metriccache.kinds import Cadence, Sample

NODE_NUMA_INFO = "node_numa_info"  # key in the metric cache; the value is a tuple of NumaNode


class NodeInfoCollector:
    """Publishes objects instead of samples. One that cannot be read keeps what it last was."""

    name = "node_info"
    gates: tuple[str, ...] = ()
    cadence = Cadence.NODE_INFO

    def __init__(self, node: str, paths: HostPaths, publish: Callable[[str, object], None]) -> None:
        """publish(name, object) makes an object known to the rest of the daemon."""
        self._paths = paths
        self._publish = publish
        self._cpu_status = StatusCounter(
            "koordlet_collect_node_cpu_info_status", "Reads of the CPU topology, by status.", node
        )
        self._numa_status = StatusCounter(
            "koordlet_collect_node_numa_info_status", "Reads of the NUMA nodes, by status.", node
        )
        self.numa_of_cpu: Mapping[int, int] = {}
        self.numa_nodes: tuple[int, ...] = ()

    def collect(self, tick: Tick) -> Iterable[Sample]:
        cpu = tick.call("cpu topology", self._read_cpu)
        self._cpu_status.count(succeeded=cpu is not None)
        if cpu is not None:
            self.numa_of_cpu = cpu[0].topology.node_of
            self._publish(NODE_CPU_INFO, cpu[0])
        numa = tick.call("numa nodes", self._read_numa)
        self._numa_status.count(succeeded=numa is not None)
        if numa is not None:
            self.numa_nodes = tuple(node.id for node in numa[0])
            self._publish(NODE_NUMA_INFO, numa[0])
        return ()

    def _read_cpu(self) -> NodeCpuInfo:
        topology = read_topology(self._paths.sys)
        return NodeCpuInfo(read_basics(self._paths, topology), topology)

    def _read_numa(self) -> tuple[NumaNode, ...]:
        return tuple(read_numa_nodes(self._paths.sys))

    def families(self) -> Iterator[Metric]:
        yield self._cpu_status.family()
        yield self._numa_status.family()


NODE_LOCAL_STORAGE = "node_local_storage_info"  # key in the metric cache; a LocalStorage
STORAGE_GATE = "BlkIOReconcile"


class NodeStorageCollector:
    """Publishes an object instead of samples."""

    name = "node_storage"
    gates: tuple[str, ...] = (STORAGE_GATE,)
    cadence = Cadence.STORAGE

    def __init__(self, node: str, paths: HostPaths, publish: Callable[[str, object], None]) -> None:
        """publish(name, object) makes an object known to the rest of the daemon."""
        self._paths = paths
        self._publish = publish
        self._status = StatusCounter(
            "koordlet_collect_node_local_storage_info_status",
            "Reads of the local storage, by status.",
            node,
        )

    def collect(self, tick: Tick) -> Iterable[Sample]:
        storage = tick.call("local storage", self._read)
        self._status.count(succeeded=storage is not None)
        if storage is not None:
            self._publish(NODE_LOCAL_STORAGE, storage[0])
        return ()

    def _read(self) -> LocalStorage:
        return read_local_storage(self._paths.sys, self._paths.proc)

    def families(self) -> Iterator[Metric]:
        yield self._status.family()
