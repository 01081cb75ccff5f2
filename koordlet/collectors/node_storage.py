"""Disks behind mount points, for plugins that throttle block devices."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric

from koordlet.collectors.engine.base import Tick
from koordlet.collectors.engine.exposition import StatusCounter
from koordlet.host.paths import HostPaths
from koordlet.host.topology.storage import LocalStorage, read_local_storage
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.sample import Sample

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
        self._status = StatusCounter("koordlet_collect_node_local_storage_info_status", node)

    def collect(self, tick: Tick) -> Iterable[Sample]:
        storage = tick.call("local storage", self._read)
        self._status.count(succeeded=storage is not None)
        if storage is not None:
            self._publish(NODE_LOCAL_STORAGE, storage[0])
        return ()

    def _read(self) -> LocalStorage:
        return read_local_storage(self._paths.sys, self._paths.proc)

    def families(self) -> Iterator[Metric]:
        yield self._status.family("Reads of the local storage, by status.")
