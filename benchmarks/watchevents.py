"""CPU that a watch event costs koord-scheduler among 5,000 nodes.

The whole way: bytes of a watch, line, decoding, cluster state, plugins, queue. Objects have the
shape of the bed's; 13 pods a node. For comparison, the time of reading the same lines as plain
JSON.
"""

import asyncio
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from benchmarks.informer import longest_hold
from benchmarks.scheduling import World
from benchmarks.table import Row
from koord.cluster import kinds
from koord.cluster.kinds import POD
from koord.component.process import GROWING
from koord.controlplane.clusterfeed import SERVED_KINDS, ClusterFeed
from koord.kube.client import ApiClient
from koord.kube.transport import Call, Transport
from koord.util.clock import SystemClock
from koord.util.stop import Stop
from koord_scheduler.framework.status import CycleState

NODES, PODS_PER_NODE, EVENTS = 5_000, 13, 2_000
EVENT, REPORT = 60.0, 100.0  # microseconds
EQUAL, DIFFERENT = 30.0, 100.0  # microseconds of LoadAware in a cycle
PLAIN = "as plain JSON"
_TOGETHER = 50  # events
_KINDS = {kind: SERVED_KINDS[kind] for kind in (kinds.NODE, POD, kinds.NODE_METRIC)}
_TEMPLATES = Path(__file__).parent / "bed"
_START = time.time()

Json = dict[str, Any]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time for an event of each kind."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield from asyncio.run(_measure(200 if smoke else NODES, 100 if smoke else EVENTS))
    finally:
        gc.enable()
        gc.unfreeze()


class _Server(Transport):
    """Stands in for the server: lists from memory, and watches that are fed by send."""

    def __init__(self, lists: dict[str, list[bytes]]) -> None:
        self.lists = lists
        self._watches: dict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self._begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def expire(self, path: str) -> None:
        """End a watch as too old; return when the list has been taken over and is watched."""
        self._begun[path].clear()
        self.send(path, b'{"type":"ERROR","object":{"code":410}}\n')
        await self._begun[path].wait()

    def send(self, path: str, piece: bytes) -> None:
        self._watches[path].put_nowait(piece)

    async def drained(self, path: str) -> None:
        """Return when all that was sent has been taken over."""
        await self._watches[path].join()

    async def exchange(self, call: Call) -> bytes:
        await asyncio.sleep(0)
        first, size = int(call.query.get("continue", "0")), int(call.query["limit"])
        items = self.lists.get(call.path, [])
        last = first + size
        meta = {"resourceVersion": "1", "continue": str(last) if last < len(items) else ""}
        return b'{"metadata":%s,"items":[%s]}' % (
            json.dumps(meta).encode(),
            b",".join(items[first:last]),
        )

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        watch = self._watches[call.path]

        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield await watch.get()
                watch.task_done()

        self._begun[call.path].set()
        yield pieces()


class _Cluster:
    """A scheduler's cluster that a feed fills."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.version = 1
        self.pod_path = _KINDS[POD].resource.collection()
        self.node_path = _KINDS[kinds.NODE].resource.collection()
        self.report_path = _KINDS[kinds.NODE_METRIC].resource.collection()
        self.server = _Server(
            {
                self.node_path: [self.node(at) for at in range(nodes)],
                self.pod_path: [self.pod(at) for at in range(nodes * PODS_PER_NODE)],
                self.report_path: [self.report(at) for at in range(nodes)],
            }
        )

    async def build(self) -> None:
        clock = SystemClock()
        self.world = World(0, shipped=True)
        await self.world.build()
        self.state = self.world.state
        client = ApiClient(cast(Transport, self.server), clock)
        self.feed = ClusterFeed(client, self.state, clock, served=_KINDS)
        self.stop = Stop(clock)
        self.running = asyncio.create_task(self.feed.run(self.stop))
        await self.feed.wait_watching()
        self.plugin = cast(Any, self.world.profile.plugins["LoadAwareScheduling"])
        self.plugin.table.follow(self.state.view())

    async def cost(self, path: str, events: Sequence[bytes]) -> tuple[float, float]:
        """CPU seconds of an event, and of reading it as plain JSON; of several the best."""
        await asyncio.sleep(0.02)
        took, plain = [], []
        for first in range(0, len(events), _TOGETHER):
            some = events[first : first + _TOGETHER]
            begun = time.thread_time()
            for event in some:
                json.loads(event)
            plain.append((time.thread_time() - begun) / len(some))
            begun = time.thread_time()
            for event in some:
                self.server.send(path, event)
            await self.server.drained(path)
            took.append((time.thread_time() - begun) / len(some))
        return min(took), min(plain)  # others are busy on this machine, too

    def follow(self, pods: int) -> Iterator[Row]:
        """Measure the cost of LoadAware in cycles that each assume a pod on a node."""
        followed, asked = [], []
        for at in range(pods):
            pod = self.state.get(POD, f"default/new-{at}")
            assert pod is not None
            self.state.assume(pod, _node(at % self.nodes))
            view = self.state.view()
            assert len(view.generation) == self.nodes  # computed here, as for all plugins
            begun = time.thread_time()
            self.plugin.filter_reuse_key(CycleState(), pod, view)
            followed.append(time.thread_time() - begun)
            begun = time.thread_time()
            self.plugin.filter_all(CycleState(), pod, view)
            self.plugin.score_all(CycleState(), pod, view)
            asked.append(time.thread_time() - begun)
        column = view.allocatable[:, 0].copy()
        begun = time.thread_time()
        for _ in range(1000):
            column.sum()
        reference = (time.thread_time() - begun) * 1e3
        for what, took, budget in (
            ("follows a pod", followed, EQUAL),
            ("filters and scores all", asked, DIFFERENT),
        ):
            value = statistics.quantiles(took, n=20)[0] * 1e6
            yield Row(f"LoadAware {what}", value, "µs", budget, reference, "sum of one column")

    async def hold(self) -> float:
        """The longest hold of the loop, in seconds, of a list of all pods and reports again.

        Every pod and report has changed; it takes what follows the cluster without a cycle.
        """
        lists, stop = self.server.lists, Stop(SystemClock())
        lists[self.report_path] = [self.report(at, 59) for at in range(self.nodes)]
        lists[self.pod_path] = [
            self.pod(at, reason="Sick") for at in range(self.nodes * PODS_PER_NODE)
        ]
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(*GROWING)
        holding = asyncio.create_task(longest_hold(stop))
        await asyncio.gather(
            self.server.expire(self.pod_path), self.server.expire(self.report_path)
        )
        stop.set()
        return await holding

    def node(self, at: int) -> bytes:
        text = _filled(
            _NODE_TEXT, name=_node(at), uid=f"uid-{at}", now=_ago(3600), zone=f"z{at % 3}",
            pool="p", cpu=32, memory=128, taint="",
        )  # fmt: skip
        return self._bytes(json.loads(text))

    def pod(self, at: int, **status: Any) -> bytes:
        text = _filled(
            _POD_TEXT, name=f"run-{at}", uid=f"6a1f0d3e-0000-4000-8000-{at:012d}", now=_ago(3600),
            rs=f"rs-{at // 50}", rsuid=f"uid-rs-{at // 50}", app=f"app-{at // 50}",
            node=_node(at % self.nodes), cpu="500m", memory="1Gi",
        )  # fmt: skip
        found = json.loads(text)
        found["status"] |= status
        return self._bytes(found)

    def pending(self, at: int, **spec: Any) -> bytes:
        found = json.loads(self.pod(at))
        found["metadata"] |= {"name": f"new-{at}", "uid": f"uid-new-{at}"}
        del found["spec"]["nodeName"]
        found["spec"] |= {"schedulerName": "bench", **spec}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _ago(3600)}
        conditions = [scheduled] if spec else []
        found["status"] = {"phase": "Pending", "qosClass": "Burstable", "conditions": conditions}
        return self._bytes(found)

    def report(self, node: int, turn: int = 0) -> bytes:
        pods = [
            {
                "name": f"run-{number * self.nodes + node}",
                "namespace": "default",
                "priority": "koord-prod",
                "qos": "LS",
                "podUsage": _usage(200 + number + turn, 300 + number + turn),
            }
            for number in range(PODS_PER_NODE)
        ]
        found = json.loads(_filled(
            _REPORT_TEXT, name=_node(node), uid=f"uid-m-{node}",
            now=_ago(60 - turn), cpu=3000 + node + turn,
            memory=40_000 + turn, syscpu=300, sysmemory=2000, pods=json.dumps(pods)[1:-1],
        ))  # fmt: skip
        return self._bytes(found)

    def _bytes(self, found: Json) -> bytes:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        return json.dumps(found, separators=(",", ":")).encode()


_NODE_TEXT = (_TEMPLATES / "node.json").read_text()
_POD_TEXT = (_TEMPLATES / "pod.json").read_text()
_REPORT_TEXT = (_TEMPLATES / "metric.json").read_text()


def _filled(text: str, **values: object) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def _ago(seconds: int) -> str:
    return datetime.fromtimestamp(_START - seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(type_: str, found: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), found)


def _node(at: int) -> str:
    return f"n{at:05d}"


def _usage(milli: int, mebi: int) -> Json:
    return {"resources": {"cpu": f"{milli}m", "memory": f"{mebi}Mi"}}


async def _measure(nodes: int, events: int) -> list[Row]:
    found = _Cluster(nodes)
    await found.build()
    with found.world.profile.services.limits:  # as the scheduler has it while it runs
        return await _measure_events(found, nodes, events)


async def _measure_events(found: _Cluster, nodes: int, events: int) -> list[Row]:
    rows: list[Row] = []
    some = range(events)

    async def measure(
        what: str, path: str, type_: str, objects: Iterable[bytes], budget: float = EVENT
    ) -> None:
        took, plain = await found.cost(path, [_event(type_, one) for one in objects])
        rows.append(Row(f"event: {what}", took * 1e6, "µs", budget, plain * 1e6, PLAIN))

    reports = [found.report(at % nodes, 1 + at // nodes) for at in some]
    await measure("NodeMetric of 13 pods", found.report_path, "MODIFIED", reports, REPORT)
    again = [found.pod(at, conditions=[{"type": "Ready", "status": "False"}]) for at in some]
    pods = found.pod_path
    await measure("pod, nothing new", pods, "MODIFIED", map(found.pod, some))
    await measure("pod, its status", pods, "MODIFIED", again)
    await measure("pod deleted", pods, "DELETED", again)
    await measure("pod bound by another", pods, "ADDED", again)
    pending = [found.pending(at) for at in some]
    await measure("pod to schedule", pods, "ADDED", pending)
    rows += found.follow(events)
    bound = [found.pending(at, nodeName=_node(at % nodes)) for at in some]
    await measure("assumed pod confirmed", pods, "MODIFIED", bound)
    beats = [found.node(at) for at in range(min(events, nodes, 500))]
    await measure("node, heartbeat", found.node_path, "MODIFIED", beats)
    pods_again = f"list of {nodes * PODS_PER_NODE} pods again"
    rows.append(Row(f"longest hold, {pods_again}", await found.hold() * 1e3, "ms", 10.0))
    found.stop.set()
    await found.running
    return rows
