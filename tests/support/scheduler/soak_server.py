"""An API server with a history, and the lines of schedulers to it, which have faults and lag.

Lists and watches are as the real server's: pages of one moment, watches that begin at a version,
410 for what is compacted, and a cache that may answer a list with any moment since the one that is
asked for. A request is carried out whether or not its client still waits for the response.
"""

import asyncio
import bisect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from koord.controlplane.testing import api_error_response
from koord.kube.errors import Unreachable
from koord.kube.transport import Call, Transport
from koord.util.clock import Clock
from tests.support.clusters import node, pod
from tests.support.scheduler.loop import Api, Fault, Json
from tests.support.scheduler.soak_storage import (
    CLAIMS,
    CLASSES,
    CSI_NODES,
    VOLUMES,
    ZONE,
    SoakStorage,
)

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
THEIRS = "theirs"  # the node of another scheduler
COLLECTIONS = (PODS, NODES, CLAIMS, VOLUMES, CLASSES, CSI_NODES)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an object."""

    version: int
    type: str
    key: str
    object: bytes


@dataclass(eq=False, slots=True)
class Request:
    """A request as the server has it in its log."""

    line: "Line"
    call: Call
    sent: float  # monotonic seconds
    allowed: bool  # whether its client led then
    given_up: bool = False  # its client waits no more
    answer: str = ""  # "": none yet


class Server(Api):
    """The objects, their history, and the log of what has changed them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.version = 1
        self.compacted = 0
        self.history: dict[str, list[Entry]] = {each: [] for each in COLLECTIONS}
        self.node_versions: dict[str, list[tuple[int, Json | None]]] = {}
        self.log: list[Request] = []
        self.journal: list[str] = []  # of what was carried out, for who compares histories
        self.on_bound: Callable[[Request, Json], None] = lambda request, pod: None
        self.on_delete: Callable[[str], None] = lambda key: None
        self.lines: list[Line] = []
        super().__init__(None)  # type: ignore[arg-type]  # no state is at its other end
        self.storage = SoakStorage(self._record)

    def add_node(self, name: str, cpu: str = "8", **spec: Any) -> None:
        """A node with as much memory in Gi as cores, few pods and volumes, and one of two zones."""
        room = {"cpu": cpu, "memory": f"{cpu}Gi", "pods": spec.pop("pods", "8")}
        is_new = name not in self.nodes
        self.nodes[name] = node(name, {ZONE: "ab"[ord(name[-1]) % 2]}, room, **spec)
        self._note_node(name, "ADDED" if is_new else "MODIFIED")
        if name not in self.storage.limits:
            self.storage.limit(name, 2)

    def label_nodes(self, value: str) -> None:
        """All nodes have a label, which no pod asks for."""
        for name in self.nodes:
            self.nodes[name]["metadata"]["labels"]["a"] = value
            self._note_node(name, "MODIFIED")

    def delete_node(self, name: str) -> None:
        self._note_node(name, "DELETED")
        del self.nodes[name]

    def add_pod(
        self, name: str, cpu: str = "1", bound: str = "", uid: str = "", **spec: Any
    ) -> str:
        requests = {"cpu": cpu, "memory": spec.pop("memory", "1Gi")}
        made = pod(name, bound, requests=requests, schedulerName="p", **spec)
        made["status"] = {"phase": "Running" if bound else "Pending"}
        made["metadata"]["uid"] = uid or f"uid-{name}"
        key = f"default/{name}"
        self.pods[key] = made
        self._record(PODS, "ADDED", key, made)
        return key

    def delete_pod(self, key: str) -> None:
        found = self.pods.pop(key)
        self._record(PODS, "DELETED", key, found)

    def serve(self, request: Request) -> bytes:
        """Carry a request out; raises what the server refuses."""
        call = request.call
        self.journal.append(f"{self.clock.monotonic():.6f} {call.where} {call.query} {call.body!r}")
        if call.method == "GET" and call.path in self.history:
            return self._list(call, call.path)
        bindings = len(self.bindings)
        answer = self._carry_out(call)
        if len(self.bindings) > bindings:
            self.on_bound(request, self.pods[self.bindings[-1][0]])
        return json.dumps(answer).encode()

    def compact(self) -> None:
        """Old versions cannot be asked for any more."""
        self.compacted = self.version

    def node_since(self, name: str, version: int) -> list[Json]:
        """A node as it has been since a version, in all its states."""
        known = self.node_versions.get(name, [])
        first = max(bisect.bisect_right([at for at, _ in known], version) - 1, 0)
        return [item for _, item in known[first:] if item is not None]

    def _carry_out(self, call: Call) -> Json:
        if "/persistentvolume" in call.path:
            return self.storage.carry_out(call)
        return super()._carry_out(call)

    def _publish(self, key: str) -> None:
        self._record(PODS, "MODIFIED", key, self.pods[key])

    def _delete(self, call: Call, key: str) -> Json:
        answer = super()._delete(call, key)
        self.on_delete(key)
        return answer

    def _note_node(self, name: str, kind: str) -> None:
        self._record(NODES, kind, name, self.nodes[name])
        found = None if kind == "DELETED" else self.nodes[name]
        self.node_versions.setdefault(name, []).append((self.version, found))

    def _record(self, collection: str, kind: str, key: str, obj: Json) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        data = json.dumps(obj).encode()
        self.history[collection].append(Entry(self.version, kind, key, data))

    def _list(self, call: Call, collection: str) -> bytes:
        start, newest = 0, self.version
        if "continue" in call.query:
            start, version = map(int, call.query["continue"].split("@"))
            if version < self.compacted:
                raise api_error_response(call, 410, "Expired", "the continue token is too old")
        else:
            version = newest
            if (least := call.query.get("resourceVersion", "")) != "":
                line = next(one for one in self.lines if one.carries(call))
                version = line.draw.randint(max(int(least), self.compacted), newest)
        found = self._objects_at(collection, version)
        end = start + int(call.query.get("limit") or len(found) or 1)
        metadata = {"resourceVersion": str(version)}
        if end < len(found):
            metadata["continue"] = f"{end}@{version}"
        head = json.dumps({"kind": "List", "metadata": metadata}).encode()
        return head[:-1] + b', "items": [' + b",".join(found[start:end]) + b"]}"

    def _objects_at(self, collection: str, version: int) -> list[bytes]:
        found: dict[str, bytes] = {}
        for entry in self.history[collection]:
            if entry.version > version:
                break
            if entry.type == "DELETED":
                found.pop(entry.key, None)
            else:
                found[entry.key] = entry.object
        return [found[key] for key in sorted(found)]


@dataclass(eq=False)
class Line(Transport):
    """The connection of one scheduler."""

    server: Server
    draw: Random
    is_leader: Callable[[], bool]
    faults: list[Fault] = field(default_factory=list)  # called before a request is carried out
    lost: list[Fault] = field(default_factory=list)  # called after it was
    hang: bool = False
    hang_after: bool = False  # requests hang when they were carried out
    away: bool = False
    hanging: list[asyncio.Event] = field(default_factory=list)
    decided: dict[str, float] = field(default_factory=dict)  # when its client did, by uid

    def __post_init__(self) -> None:
        self.delivered = dict.fromkeys(self.server.history, self.server.version)
        self.seen: list[tuple[float, int]] = [(0.0, 0)]  # when the client had which nodes
        self._cuts: dict[str, str] = {}
        self._woken = {each: asyncio.Event() for each in self.server.history}
        self._open: list[Request] = []
        self._serving: set[asyncio.Task[bytes]] = set()
        self.server.lines.append(self)

    def carries(self, call: Call) -> bool:
        """Whether a call that is carried out was sent on this line."""
        return any(one.call is call for one in self._open)

    def let_go(self) -> None:
        """What hangs goes on."""
        self.hang = self.hang_after = False
        for each in self.hanging:
            each.set()
        self.hanging.clear()

    def deliver(self, collection: str, most: int | None = None) -> None:
        """Have so many events of a collection come by its watch; None: all."""
        at, history = self.delivered[collection], self.server.history[collection]
        ahead = history[bisect.bisect_right(history, at, key=lambda one: one.version) :]
        if most is not None and most < len(ahead):
            self._reached(collection, ahead[most - 1].version if most else at)
        else:
            self._reached(collection, self.server.version)
        self._woken[collection].set()

    def cut(self, collection: str, how: str) -> None:
        """End the watch of a collection: closed, broken, or expired."""
        self._cuts[collection] = how
        self._woken[collection].set()

    def version_before(self, moment: float) -> int:
        """The version of the nodes that the client had right before then."""
        return self.seen[bisect.bisect_left(self.seen, moment, key=lambda one: one[0]) - 1][1]

    async def exchange(self, call: Call) -> bytes:
        now = self.server.clock.monotonic()
        request = Request(self, call, now, call.method == "GET" or self.is_leader())
        self.server.log.append(request)
        task = asyncio.create_task(self._serve(request))
        self._serving.add(task)
        task.add_done_callback(self._served)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            request.given_up = True
            raise

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        collection, since = call.path, int(call.query["resourceVersion"])
        await asyncio.sleep(0)
        self._check_away(call)
        if since < self.server.compacted:
            raise api_error_response(call, 410, "Expired", f"too old resource version: {since}")
        self._cuts.pop(collection, None)
        self._reached(collection, since)
        yield self._events(call, collection, since)

    async def close(self) -> None:
        """There are no connections."""

    async def _events(self, call: Call, collection: str, since: int) -> AsyncIterator[bytes]:
        history = self.server.history[collection]
        at = bisect.bisect_right(history, since, key=lambda one: one.version)
        while True:
            pieces = []
            while at < len(history) and history[at].version <= self.delivered[collection]:
                entry = history[at]
                pieces.append(b'{"type":"%s","object":%s}\n' % (entry.type.encode(), entry.object))
                at += 1
            self._saw(collection, self.delivered[collection])
            if pieces:
                yield b"".join(pieces)
            match self._cuts.pop(collection, ""):
                case "closed":
                    return
                case "broken":
                    raise Unreachable(f"{call.where}: the connection was reset")
                case "expired":
                    yield b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'
                case "bookmark":
                    version = json.dumps(str(self.delivered[collection])).encode()
                    metadata = b'{"metadata":{"resourceVersion":%s}}' % version
                    yield b'{"type":"BOOKMARK","object":%s}\n' % metadata
            if at < len(history) and history[at].version <= self.delivered[collection]:
                continue
            self._woken[collection].clear()
            await self._woken[collection].wait()

    async def _serve(self, request: Request) -> bytes:
        call = request.call
        self._open.append(request)
        await asyncio.sleep(0)
        try:
            await self._hang(self.hang)
            self._check_away(call)
            if self.faults:
                self.faults.pop(0)(call)
            answer = self.server.serve(request)
            await self._hang(self.hang_after)
            self._check_away(call)
            if self.lost:
                self.lost.pop(0)(call)
        except Exception as err:
            request.answer = str(err)
            raise
        finally:
            self._open.remove(request)
        request.answer = "ok"
        return answer

    def _served(self, task: "asyncio.Task[bytes]") -> None:
        self._serving.discard(task)
        if not task.cancelled():
            task.exception()  # its client may wait no more

    async def _hang(self, hangs: bool) -> None:
        if hangs:
            self.hanging.append(asyncio.Event())
            await self.hanging[-1].wait()

    def _check_away(self, call: Call) -> None:
        if self.away:
            raise Unreachable(f"{call.where}: no route")

    def _reached(self, collection: str, version: int) -> None:
        self.delivered[collection] = max(self.delivered[collection], version)

    def _saw(self, collection: str, version: int) -> None:
        """All changes of a collection up to a version have gone to the client."""
        if collection == NODES:
            self.seen.append((self.server.clock.monotonic(), version))
