"""Volumes and claims as they will be when what was decided is done: known once in the process."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.plugin import OK, PartHealth, Stop
from koord_scheduler.plugin import (
    NODE,
    POD,
    Changes,
    ClusterNode,
    ClusterPod,
    ClusterState,
    SharedPart,
    View,
)
from koord_scheduler.plugin.storage import CLAIM, VOLUME, Claim, Volume
from koord_scheduler_plugins.volume_binding.tables import CapacityTables, VolumeTables

_VOLUMES_PER_TURN = 100  # of the event loop

T = TypeVar("T", Claim, Volume)


@dataclass(slots=True)
class _Assumed(Generic[T]):
    item: T
    pod: str  # uid of the pod that it is assumed for
    seen: str  # the version of the API server's object that it was made from
    stored: str = ""  # the version that the API server has made of it; "": it has not got it yet

    def holds(self, live: T) -> bool:
        """Whether what is known of the API server is not newer than this."""
        if live.uid != self.item.uid:
            return False
        version = live.resource_version
        return version == self.seen or (bool(self.stored) and is_older(version, self.stored))


class AssumedVolumes(SharedPart):
    """Assumed volumes and claims, and futures that wait for changes. Belongs to the event loop.

    An assumption ends when its pod's binding is given up, or when the API server's object is newer.
    """

    def __init__(self, cluster: ClusterState, changes: Changes) -> None:
        self.tables = VolumeTables()
        self.capacities = CapacityTables()
        self._cluster = cluster
        self._volumes: dict[str, _Assumed[Volume]] = {}
        self._claims: dict[str, _Assumed[Claim]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by what has to change
        changes.subscribe(VOLUME, self._volume_changed)
        changes.subscribe(CLAIM, self._claim_changed)
        changes.subscribe(POD, self._pod_changed)
        changes.subscribe(NODE, self._node_changed)

    async def run(self, stop: Stop) -> None:
        """There is nothing to do but to know."""
        await stop.wait()

    async def wait_ready(self) -> None:
        """It is ready when the tables have all volumes of the cluster, which takes a while."""
        for number, _ in enumerate(self.tables.steps(self._cluster.view()), 1):
            if number % _VOLUMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def health(self) -> PartHealth:
        return OK

    def volume(self, live: Volume) -> Volume:
        """A volume of the API server as it is assumed to be."""
        found = self._volumes.get(live.name)
        return live if found is None else _current(self._volumes, live.name, found, live)

    def volumes_of(self, nodes: View) -> dict[str, Volume]:
        """The volumes of a view that are assumed to be others, by name."""
        lives = [nodes.volume(name) for name in self._volumes]
        found = [self.volume(live) for live in lives if live is not None]
        return {one.name: one for one in found if one.name in self._volumes}

    def claim(self, live: Claim) -> Claim:
        """A claim of the API server as it is assumed to be."""
        found = self._claims.get(live.key)
        return live if found is None else _current(self._claims, live.key, found, live)

    def assume_volume(self, pod: str, volume: Volume) -> None:
        """A volume was given to a claim, for the pod with this uid."""
        self._volumes[volume.name] = _Assumed(volume, pod, volume.resource_version)

    def assume_claim(self, pod: str, claim: Claim) -> None:
        """A node was chosen for a claim, for the pod with this uid."""
        self._claims[claim.key] = _Assumed(claim, pod, claim.resource_version)

    def stored_volume(self, name: str, version: str) -> None:
        """The API server has taken over what was assumed."""
        if name in self._volumes:
            self._volumes[name].stored = version

    def stored_claim(self, key: str, version: str) -> None:
        """The API server has taken over what was assumed."""
        if key in self._claims:
            self._claims[key].stored = version

    def revert(self, pod: str, volumes: Iterable[str], claims: Iterable[str]) -> None:
        """Forget what was assumed for a pod; others that wait for it learn of that."""
        for name in volumes:
            if name in self._volumes and self._volumes[name].pod == pod:
                del self._volumes[name]
                self._wake(f"volume {name}")
        for key in claims:
            if key in self._claims and self._claims[key].pod == pod:
                del self._claims[key]
                self._wake(f"claim {key}")

    def watch(self, timer: "asyncio.Future[None]", names: Iterable[str]) -> None:
        """Complete a future with the next change of one of these."""
        for name in names:
            self._waiting.setdefault(name, set()).add(timer)

    def unwatch(self, timer: "asyncio.Future[None]", names: Iterable[str]) -> None:
        """The end of watch."""
        for name in names:
            waiting = self._waiting.get(name, set())
            waiting.discard(timer)
            if not waiting:
                self._waiting.pop(name, None)

    def _wake(self, name: str) -> None:
        for timer in self._waiting.get(name, ()):
            if not timer.done():
                timer.set_result(None)

    def _volume_changed(self, old: Volume | None, new: Volume | None) -> None:
        changed = new or old
        if changed is not None:
            if new is None:
                self._volumes.pop(changed.name, None)
            self._wake(f"volume {changed.name}")

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        changed = new or old
        if changed is not None:
            if new is None:
                self._claims.pop(changed.key, None)
            self._wake(f"claim {changed.key}")

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        if old is not None and new is None and self._waiting:
            self._wake(f"pod {old.key}")

    def _node_changed(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        if old is not None and self._waiting:
            self._wake(f"node {old.name}")


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is of an earlier change; those that are no numbers are none.

    Source: Kubernetes 1.35, resource versions of one resource can be compared.
    """
    if not all(one.isascii() and one.isdecimal() for one in (version, than)):
        return False
    return (len(version), version) < (len(than), than)


def _current(table: dict[str, _Assumed[T]], key: str, found: _Assumed[T], live: T) -> T:
    if found.holds(live):
        return found.item
    del table[key]
    return live
