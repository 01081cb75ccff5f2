"""The pods that are on their way: asked to leave their node, and not gone yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from koord.cluster.state import ClusterState
from koord.cluster.view import View


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One pod on its way."""

    pod: str  # namespace/name
    uid: str  # of the pod
    node: str  # where it is; "": not known
    target: str = ""  # the node that is reserved for it; "": none yet


class Migrations:
    """Migrations by uid of the pod, kept by the plugins that carry them out.

    Other plugins count them: a pod that is leaving relieves its node already, see carried_out.
    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, Migration] = {}
        self.by_uid: Mapping[str, Migration] = MappingProxyType(self._by_uid)  # live

    def put(self, migration: Migration) -> None:
        """Note that a pod is on its way, or where to."""
        self._by_uid[migration.uid] = migration

    def end(self, uid: str) -> None:
        """The pod is gone, or stays after all; one that is not known is none."""
        self._by_uid.pop(uid, None)

    def carried_out(self, cluster: ClusterState) -> View:
        """Return the cluster as if all migrations had happened.

        A pod whose target is not known is nowhere, one that is gone or has ended is left alone.
        """
        view = cluster.view()
        what_if = view.what_if()
        for one in self._by_uid.values():
            pod = cluster.pod(one.pod)
            if pod is None or pod.uid != one.uid or pod.finished or pod.node == one.target:
                continue
            if view.row(pod.node) is None:
                continue
            what_if.remove(pod.key, pod.node)
            if view.row(one.target) is not None:
                what_if.add(replace(pod, node=one.target), one.target)
        return what_if.view()
