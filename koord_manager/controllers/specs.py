"""Keeps the specs of NodeMetrics and NodeSLOs, one for each node."""

from collections.abc import Callable, Iterable, Mapping

from koord.api.node import Node
from koord.cluster.facts import ClusterNode
from koord.kube.client import ApiClient
from koord.kube.managedobjects import (
    ManagedObject,
    StoredObject,
    changes,
    new_object,
    only_if_unchanged,
)
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord_manager import NAME
from koord_manager.cluster import NodeChange
from koord_manager.controllers.worker import NodeWorker, SpecMetrics
from koord_manager.framework.facts import ClusterConfig

ORPHAN_DELAY = 60.0  # seconds that an object outlives its node at least
MIN_GAP = 10.0  # seconds between two writes of one object: another writer may undo each

log = get_logger("koord_manager.specs")


class ManagedSpecs(NodeWorker):
    """Keeps one kind of object. Belongs to the event loop."""

    def __init__(
        self,
        managed: ManagedObject,
        change: NodeChange,
        stored: Callable[[], Mapping[str, StoredObject]],
        nodes: Callable[[str], ClusterNode | None],
        node_names: Callable[[], Iterable[str]],
        config: Callable[[], ClusterConfig | None],
        is_synced: Callable[[], bool],
        client: ApiClient,
        clock: Clock,
        metrics: SpecMetrics,
        *,
        dry_run: bool = False,
    ) -> None:
        """change is what objects of the kind are heard as.

        stored returns all of them, by name, once is_synced says so.
        """
        super().__init__(clock)
        self.follows = frozenset({NodeChange.METADATA, change})
        self.name = managed.name
        self._managed = managed
        self._stored = stored
        self._nodes = nodes
        self._node_names = node_names
        self._config = config
        self._is_synced = is_synced
        self._client = client
        self._count = metrics.reconciles[managed.name]
        self._dry_run = dry_run
        self._wrote: dict[str, float] = {}  # monotonic
        self._orphans: dict[str, float] = {}

    def ready(self) -> bool:
        return self._config() is not None and self._is_synced()

    def everything(self) -> Iterable[str]:
        return {*self._node_names(), *self._stored()}

    async def reconcile(self, name: str) -> None:
        node, config, found = self._nodes(name), self._config(), self._stored().get(name)
        if config is None or self._dry_run:
            return
        if node is None:
            await self._delete_orphan(name, found)
            return
        self._orphans.pop(name, None)
        waits = self._wrote.get(name, -MIN_GAP) + MIN_GAP - self._clock.monotonic()
        facts = Node(name, labels=node.labels, annotations=dict(node.annotations), uid=node.uid)
        spec, problems = self._managed.spec(config.slo, facts, found.spec if found else None)
        if problems:
            log.debug("node.partly_rejected", object=self.name, node=name,
                      problems=[str(one) for one in problems])  # fmt: skip
        resource = self._managed.resource
        operations = changes(self._managed, facts, found, spec) if found else []
        if found is not None and not operations:
            return
        if waits > 0:
            self.queue.add_after(name, waits)
            return
        self._wrote[name] = self._clock.monotonic()
        try:
            if found is None:
                body = new_object(self._managed, facts, spec)
                await self._client.create(resource.collection(), body, field_manager=NAME)
            else:
                operations = [*only_if_unchanged(found), *operations]
                await self._client.json_patch(resource.object(name), operations, field_manager=NAME)
        except Exception:
            self._count.inc("failed")
            raise
        self._count.inc("succeeded")

    async def _delete_orphan(self, name: str, found: StoredObject | None) -> None:
        """Delete an object whose node is gone, once it is gone for a while."""
        if found is None:
            self._orphans.pop(name, None)
            self._wrote.pop(name, None)
            return
        now = self._clock.monotonic()
        since = self._orphans.setdefault(name, now)
        if now - since < ORPHAN_DELAY:
            self.queue.add_after(name, ORPHAN_DELAY - (now - since))
            return
        await self._client.delete(self._managed.resource.object(name), uid=found.uid)
        self._orphans.pop(name, None)
        log.info("object.deleted", object=self.name, node=name)
