"""Following all pods of a cluster: the cost of a list, of an event and of the same list again.

Without the garbage collector, which a daemon sets aside when it has so many objects: a collection
of those of 150,000 pods takes a second.
"""

import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

from benchmarks.table import Row
from koord.kube.client import ApiClient, WatchEvent, WatchEventType
from koord.kube.errors import api_error
from koord.kube.informer import SharedInformer
from koord.kube.reflector import Change, ChangeKind, Watched
from koord.kube.transport import ListPage
from koord.util.clock import SystemClock
from koord.util.stop import Stop

FEW, MANY = 150, 150_000  # pods of a node, and of a cluster of 5,000 nodes
EVENTS = 2_000
PAGE, PIECE = 500, 50  # pods of a page, and events that come at once


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time per listed pod and per event, beside those of a small collection."""
    many = MANY // 10 if smoke else MANY
    gc.disable()
    small, large = (asyncio.run(_follow(count)) for count in (FEW, many))
    gc.enable()
    what = f"{many} pods"
    yield Row(f"list of {what}, per pod", large["list"] * 1e6, "us")
    yield Row(
        f"event among {what}", large["event"] * 1e6, "us", 60.0, small["event"] * 1e6, f"{FEW} pods"
    )
    yield Row(f"list of {what} again, per pod", large["relist"] * 1e6, "us")
    yield Row(f"longest hold of the loop, {what}", large["hold"] * 1e3, "ms", 10.0)
    yield Row(f"memory kept, {what}, per pod", large["kept"], "bytes")


class _Server:
    """Stands in for an ApiClient: makes the pods at each request."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self.go, self.ended, self.expire = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def pages(
        self, path: str, query: object, *, size: int, accept: str
    ) -> AsyncIterator[ListPage]:
        for first in range(0, self._pods, size):
            numbers = range(first, min(first + size, self._pods))
            yield ListPage([_pod(number, 1) for number in numbers], "1", "")
            await asyncio.sleep(0)

    @asynccontextmanager
    async def watch(self, *_: object, **__: object) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def events() -> AsyncIterator[WatchEvent]:
            await self.go.wait()
            for number in range(EVENTS):
                yield WatchEvent(WatchEventType.MODIFIED, _pod(number % self._pods, 2 + number))
                if number % PIECE == 0:
                    await asyncio.sleep(0)
            self.ended.set()
            await self.expire.wait()
            self.expire.clear()
            raise api_error(410, {"reason": "Expired"}, where="watch")

        yield events()


async def _follow(pods: int) -> dict[str, float]:
    """Seconds of CPU per pod and event, the longest hold in seconds, and bytes kept per pod."""
    server, clock, before = _Server(pods), SystemClock(), _resident()
    relisted = asyncio.Event()

    def see(change: Change[tuple[str, ...]]) -> None:
        if change.kind is ChangeKind.SYNCED:
            relisted.set()

    watched = Watched(name="pods", path="/api/v1/pods", read=_read, on_change=see, page_size=PAGE)
    stop = Stop(clock)
    indexes: dict[str, Callable[[tuple[str, ...]], tuple[str, ...]]] = {"node": lambda pod: pod[:1]}
    informer = SharedInformer(cast(ApiClient, server), watched, clock, indexes=indexes)
    hold = asyncio.create_task(longest_hold(stop))
    begun = time.process_time()
    following = asyncio.create_task(informer.run(stop))
    await informer.wait_synced()
    listed, kept = time.process_time(), _resident() - before
    server.go.set()
    await server.ended.wait()
    delivered = time.process_time()
    relisted.clear()
    server.expire.set()
    began = time.process_time()
    await relisted.wait()
    ended = time.process_time()
    stop.set()
    await following
    return {
        "list": (listed - begun) / pods,
        "event": (delivered - listed) / EVENTS,
        "relist": (ended - began) / pods,
        "hold": await hold,
        "kept": kept / pods,
    }


async def longest_hold(stop: Stop) -> float:
    """CPU seconds of the longest turn of the event loop until stop."""
    longest, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


def _read(item: dict[str, Any]) -> tuple[str, ...]:
    return item["spec"]["nodeName"], item["metadata"]["name"], item["status"]["phase"]


def _pod(number: int, version: int) -> dict[str, Any]:
    metadata = {"name": f"pod-{number}", "namespace": "default", "uid": f"uid-{number}"}
    return {
        "metadata": {**metadata, "resourceVersion": str(version)},
        "spec": {"nodeName": f"node-{number // 30}"},
        "status": {"phase": "Running"},
    }


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
