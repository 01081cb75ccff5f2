"""An object of this node that this agent keeps right, followed on the API server by watch."""

from collections.abc import Callable
from typing import Generic, TypeVar

from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.listwatch import Absent
from koord.kube.resource import NODE_TOPOLOGIES, Resource
from koord.kube.store import ChangeKind
from koord.util.clock import Clock
from koordlet.rules.noderesourcetopology import PublishedTopology, parse_published
from koordlet.statesinformer.objects.kubesources import OwnObject
from koordlet.statesinformer.objects.reading import ObjectReading

T = TypeVar("T")
PAUSE = 150.0  # seconds until the next request where the cluster lacks this kind


class PublishedObject(OwnObject[T], Generic[T]):
    """Follows what is published of this node in an object of one kind."""

    def __init__(
        self,
        kind: str,
        resource: Resource,
        parse: Callable[[Object], T],
        *,
        client: ApiClient,
        node_name: str,
        clock: Clock,
        gate: str,
    ) -> None:
        """gate: the feature that needs the kind, named where the cluster lacks it."""
        hint = f"install the CRD (deploy/crds), or switch the gate {gate} off"
        super().__init__(
            kind,
            resource,
            client=client,
            node_name=node_name,
            clock=clock,
            read=lambda item: ObjectReading(parse(item)),
            publish=self._take,
            absent=Absent(pause=PAUSE, hint=hint),
        )
        self._published: T | None = None
        self._changes = 0

    def published(self) -> T | None:
        """The object as seen last; None: there is none, or it is not known yet (see synced)."""
        return self._published

    @property
    def changes(self) -> int:
        """How often the object has changed so far; more than before a write: the write was seen."""
        return self._changes

    def _take(self, _: ChangeKind, found: T | None) -> None:
        self._published = found
        self._changes += 1


class KubeTopology(PublishedObject[PublishedTopology]):
    """Follows the published topology of this node."""

    def __init__(self, client: ApiClient, node_name: str, clock: Clock) -> None:
        super().__init__(
            "NodeResourceTopology",
            NODE_TOPOLOGIES,
            parse_published,
            client=client,
            node_name=node_name,
            clock=clock,
            gate="NodeTopologyReport",
        )
