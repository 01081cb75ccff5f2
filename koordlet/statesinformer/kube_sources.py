"""Objects of this node on the API server by watch: Node, NodeSLO, NodeMetric, published."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from koord.api.fields import Fields
from koord.api.node import Node, parse_node
from koord.api.nodemetric import NodeMetricSpec, parse_spec
from koord.api.nodeslo import NodeSLO
from koord.kube.client import (
    NODE_METRICS,
    NODE_SLOS,
    NODE_TOPOLOGIES,
    NODES,
    ApiClient,
    Resource,
    field_selector,
)
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.managedobjects import StoredObject, parse_stored
from koord.kube.reflector import Change, ChangeKind, MissingKind, Reflector, Watched
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.rules.node_resource_topology import PublishedTopology, parse_published_topology
from koordlet.statesinformer.file_sources import ObjectReading, read_node_slo
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.podmeta import ReportTarget

FIELD_MANAGER = "koordlet-reporter"
"""This agent's name in managedFields. Koordinator's agent has its program's name, koordlet."""

FOREIGN_WRITES = 2  # one alone may be a person's, or the last of an agent that has just ended
REPORT_INTERVALS = 3  # report intervals in which there must be that many


def status_writers(item: Object) -> Mapping[str, str]:
    """Return the other writers of an object's status, with the server's time of the latest write.

    Only a hint, so malformed managedFields count as absent.
    """
    try:
        entries = list(Fields(item, "object").nested("metadata").objects("managedFields"))
        return {
            entry.text("manager"): entry.text("time")
            for entry in entries
            if entry.text("subresource") == "status" and entry.text("manager") != FIELD_MANAGER
        }
    except InvalidObject:
        return {}


class StatusWriters:
    """Records writes of other agents as they happen; writes before the first look do not count.

    Clocks are not compared: a time that differs from the one before is a new write.
    """

    def __init__(self, clock: Clock, interval: Callable[[], float]) -> None:
        """interval is that of reports, in seconds."""
        self._clock = clock
        self._interval = interval
        self._last: Mapping[str, str] | None = None
        self._writes: deque[tuple[float, str]] = deque(
            maxlen=FOREIGN_WRITES
        )  # when seen, and whose

    def look(self, writers: Mapping[str, str]) -> None:
        """Record the writers of a version; see status_writers."""
        before, self._last = self._last, writers
        if before is None:
            return
        for name in sorted(name for name in writers if writers[name] != before.get(name)):
            self._writes.append((self._clock.monotonic(), name))

    @property
    def present(self) -> str:
        """The present other writer of the status; "" when there is none."""
        since = self._clock.monotonic() - REPORT_INTERVALS * self._interval()
        recent = [name for seen, name in tuple(self._writes) if seen >= since]  # any thread
        return recent[-1] if len(recent) == FOREIGN_WRITES else ""


T = TypeVar("T")
Emit = Callable[[Event], None]

log = get_logger("koordlet.statesinformer")


def no_event(_: Event) -> None:
    """Emit no event."""


@dataclass(frozen=True, slots=True)
class _ObjectVersion(Generic[T]):
    reading: ObjectReading[T]
    stored: StoredObject


class OwnObjectSource(Generic[T]):
    """Follows the one object of a kind that has this node's name.

    read may raise InvalidObject: then the last good version stays. publish is called for each
    change to a version that could be read. emit gets an event about the object whenever its
    problems change.
    """

    def __init__(
        self,
        kind: str,
        resource: Resource,
        *,
        client: ApiClient,
        node_name: str,
        clock: Clock,
        read: Callable[[Object], ObjectReading[T]],
        publish: Callable[[ChangeKind, T | None], None],
        emit: Emit = no_event,
        absent: MissingKind | None = None,
        missed: str = "",
        spec_only: bool = False,
    ) -> None:
        """absent: the handling of a cluster without this kind of object.

        missed: the reason in health while there is no such object; empty: none is needed.
        spec_only: this agent writes the status, so it is not followed; read gets an older one.
        """
        self.name = name = kind.lower()
        self._kind, self._api_version = kind, resource.api_version
        self._understand = read
        self._node_name = node_name
        self._publish = publish
        self._emit = emit
        self._missed = missed
        self._problems: tuple[str, ...] = ()
        self._reported: tuple[str, ...] = ()  # in the latest event
        self._listeners: list[Callable[[], None]] = []
        self._reflector = Reflector(
            client,
            Watched(
                name=name,
                path=resource.collection(),
                query={"fieldSelector": field_selector({"metadata.name": node_name})},
                read=self._refresh,
                on_change=self._changed,
                absent=absent,
                spec_only=spec_only,
            ),
            clock,
        )

    async def run(self, stop: Stop) -> None:
        """Follow the object until stop."""
        await self._reflector.run(stop)

    @property
    def synced(self) -> bool:
        """Whether the server has sent the object, or answered that there is none."""
        return self._reflector.synced

    def health(self) -> PartHealth:
        """Degraded while the server is away, the object is missing, or a field is malformed."""
        found = self._reflector.health()
        if self._missed and found == OK and self.synced and self.current() is None:
            return PartHealth(HealthStatus.DEGRADED, self._missed)
        if not self._problems:
            return found
        reasons = (*self._problems, found.reason) if found.reason else self._problems
        return PartHealth(HealthStatus.DEGRADED, "; ".join(reasons), found.detail)

    def current(self) -> T | None:
        """The object as the cluster has it now; None: there is none, or it is not known."""
        version = self._reflector.objects.get(self._node_name)
        return None if version is None else version.reading.value

    def stored(self) -> StoredObject | None:
        """Its identity, spec and writers; None as with current."""
        version = self._reflector.objects.get(self._node_name)
        return None if version is None else version.stored

    def listen(self, listener: Callable[[], None]) -> None:
        """Call listener after each change, and when the server has answered that there is none."""
        self._listeners.append(listener)

    def _refresh(self, item: Object) -> _ObjectVersion[T]:
        """Read a version of the object, and emit an event about its problems."""
        try:
            reading = self._understand(item)
        except InvalidObject as err:
            self._report(item, "Rejected", (str(err),))
            raise
        self._report(item, "FieldsRejected", tuple(map(str, reading.problems)))
        return _ObjectVersion(reading, parse_stored(item))

    def _report(self, item: Object, reason: str, problems: tuple[str, ...]) -> None:
        if problems and problems != self._reported:
            metadata = item["metadata"]
            about = ObjectRef(
                self._api_version, self._kind, metadata["name"], uid=str(metadata.get("uid", ""))
            )
            message = f"{'; '.join(problems)}; the last good value stays in force"
            component = f"koordlet-{self._kind}"
            self._emit(Event(about, EventType.WARNING, reason, message, component))
        self._reported = problems

    def _changed(self, change: Change[_ObjectVersion[T]]) -> None:
        if change.kind is not ChangeKind.SYNCED:
            new = None if change.new is None else change.new.reading
            self._note(() if new is None else tuple(map(str, new.problems)))
            self._publish(change.kind, None if new is None else new.value)
        for listener in self._listeners:
            listener()

    def _note(self, problems: tuple[str, ...]) -> None:
        if problems and problems != self._problems:
            note = "their last good values stay in force"
            log.warning("object.fields_rejected", source=self.name, problems=problems, note=note)
        self._problems = problems


def kube_node(
    client: ApiClient,
    node_name: str,
    informer: StatesInformer,
    clock: Clock,
    emit: Emit = no_event,
) -> OwnObjectSource[Node]:
    """Return the source that publishes this node's Node."""
    return OwnObjectSource(
        "Node",
        NODES,
        client=client,
        node_name=node_name,
        clock=clock,
        read=lambda item: ObjectReading(parse_node(item)),
        publish=_each_version(informer.set_node),
        emit=emit,
        missed=f"wanted a Node named {node_name}, found none in the cluster; if it was renamed, "
        "this agent has to be started anew, and else see --node-name",
    )


def kube_node_slo(
    client: ApiClient,
    node_name: str,
    informer: StatesInformer,
    clock: Clock,
    emit: Emit = no_event,
) -> OwnObjectSource[NodeSLO]:
    """Return the source that publishes this node's NodeSLO, merged with the defaults."""
    return OwnObjectSource(
        "NodeSLO",
        NODE_SLOS,
        client=client,
        node_name=node_name,
        clock=clock,
        read=lambda item: read_node_slo(item, informer),
        publish=_each_version(informer.set_node_slo),
        emit=emit,
    )


class KubeNodeMetric(OwnObjectSource[tuple[NodeMetricSpec, ReportTarget]]):
    """Publishes the spec of this node's NodeMetric, and holds the target of reports.

    others detects other agents that report there. While a spec is not understood, the last good one
    stays in force and reports go on.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        informer: StatesInformer,
        clock: Clock,
        emit: Emit = no_event,
    ) -> None:
        super().__init__(
            "NodeMetric",
            NODE_METRICS,
            client=client,
            node_name=node_name,
            clock=clock,
            read=self._read,
            publish=self._take,
            emit=emit,
            spec_only=True,
        )
        self._informer = informer
        self._target: ReportTarget | None = None
        self.others = StatusWriters(clock, lambda: informer.node_metric_spec().report_interval)

    def target(self) -> ReportTarget | None:
        """The object as seen last; None: there is none, or it is not known yet."""
        return self._target

    def _read(self, item: Object) -> ObjectReading[tuple[NodeMetricSpec, ReportTarget]]:
        uid = Fields(item, "nodeMetric").nested("metadata").required_text("uid")
        target = ReportTarget(uid, _reported_at(item), status_writers(item))
        try:
            return ObjectReading((parse_spec(item), target))
        except InvalidObject as err:
            return ObjectReading((self._informer.node_metric_spec(), target), (err,))

    def _take(self, kind: ChangeKind, found: tuple[NodeMetricSpec, ReportTarget] | None) -> None:
        if found is None:
            self._target = None
            return
        spec, self._target = found
        self.others.look(self._target.others)
        self._informer.set_node_metric_spec(spec)
        if kind is ChangeKind.ADDED:  # an object without reports, whatever its spec
            self._informer.send_callback(StateType.NODE_METRIC_SPEC)


def _each_version(publish: Callable[[T], None]) -> Callable[[ChangeKind, T | None], None]:
    """Publish each version of an object; one that is gone stays as it was last."""

    def take(_: ChangeKind, found: T | None) -> None:
        if found is not None:
            publish(found)

    return take


def _reported_at(item: Object) -> float | None:
    """Return the time of the status. It is only a hint, so errors in it do not matter."""
    try:
        return Fields(item, "nodeMetric").nested("status").time("updateTime")
    except InvalidObject:
        return None


RETRY_INTERVAL = 150.0  # seconds until the next request where the cluster lacks this kind


class PublishedObject(OwnObjectSource[T], Generic[T]):
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
            absent=MissingKind(pause=RETRY_INTERVAL, hint=hint),
        )
        self._published: T | None = None
        self._changes = 0

    def published(self) -> T | None:
        """The object as seen last; None: there is none, or it is not known yet (see synced)."""
        return self._published

    @property
    def changes(self) -> int:
        """Return the number of changes; when it has grown since a write, the write was seen."""
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
            parse_published_topology,
            client=client,
            node_name=node_name,
            clock=clock,
            gate="NodeTopologyReport",
        )
