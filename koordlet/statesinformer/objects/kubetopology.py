"""The NodeResourceTopology object of this node, followed on the API server by watch."""

from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.listwatch import Absent
from koord.kube.resource import NODE_TOPOLOGIES
from koord.kube.store import ChangeKind
from koord.util.clock import Clock
from koordlet.rules.noderesourcetopology import PublishedTopology, parse_published
from koordlet.statesinformer.objects.kubesources import OwnObject
from koordlet.statesinformer.objects.reading import ObjectReading

_ABSENT = Absent(
    pause=150.0,
    hint="install the CRD (deploy/crds), or switch the gate NodeTopologyReport off",
)


class KubeTopology(OwnObject[PublishedTopology]):
    """Follows the published topology of this node.

    Where the cluster lacks this kind, the next request comes some minutes later.
    """

    def __init__(self, client: ApiClient, node_name: str, clock: Clock) -> None:
        super().__init__(
            "NodeResourceTopology",
            NODE_TOPOLOGIES,
            client=client,
            node_name=node_name,
            clock=clock,
            read=_read,
            publish=self._take,
            absent=_ABSENT,
        )
        self._published: PublishedTopology | None = None
        self._changes = 0

    def published(self) -> PublishedTopology | None:
        """The object as seen last; None: there is none, or it is not known yet (see synced)."""
        return self._published

    @property
    def changes(self) -> int:
        """How often the object has changed so far; more than before a write: the write was seen."""
        return self._changes

    def _take(self, _: ChangeKind, found: PublishedTopology | None) -> None:
        self._published = found
        self._changes += 1


def _read(item: Object) -> ObjectReading[PublishedTopology]:
    return ObjectReading(parse_published(item))
