"""One copy of a collection serves many readers."""

import asyncio
from typing import Any

from structlog.testing import capture_logs

from koord.kube.client import PODS, ApiClient
from koord.kube.informer import SharedInformer
from koord.kube.reflector import Change, ChangeKind, Watched
from koord.util.health import OK
from koord.util.stop import Stop
from koord.util.timebudget import SLICE
from tests.support.kube.apiserver import ApiServer

COLLECTION = "/api/v1/pods"


def pod(name: str, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "d"}, "spec": {"nodeName": node}}


class Informed:
    """An informer that runs, and what its first handler was given."""

    def __init__(self, client: ApiClient, clock) -> None:
        self.changes: list[Change[str]] = []
        self.informer = SharedInformer(
            client,
            Watched(
                name="pods",
                path=PODS.collection(),
                read=lambda item: str(item["spec"]["nodeName"]),
                on_change=self.changes.append,
                page_size=500,
            ),
            clock,
            indexes={"node": lambda node: (node,) if node else ()},
            draw=lambda: 0.0,
        )
        self.stop = Stop(clock)
        self.task = asyncio.ensure_future(self.informer.run(self.stop))

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 60)


async def test_indexes_follow_every_change(server: ApiServer, client: ApiClient, clock) -> None:
    """An object is under its present names only, and a name without objects is forgotten."""
    server.objects.create(COLLECTION, pod("a"))
    server.objects.create(COLLECTION, pod("b"))
    informed = Informed(client, clock)
    informer = informed.informer
    await clock.until(lambda: server.watching == 1)
    assert dict(informer.indexed("node", "n1")) == {"d/a": "n1", "d/b": "n1"}

    server.objects.replace(COLLECTION, pod("a", "n2"))
    server.objects.replace(COLLECTION, pod("b", ""))
    await clock.until(lambda: len(informed.changes) == 5)

    assert dict(informer.indexed("node", "n1")) == {}
    assert dict(informer.indexed("node", "n2")) == {"d/a": "n2"}
    server.objects.delete(COLLECTION, "d/a")
    await clock.until(lambda: len(informed.changes) == 6)
    assert dict(informer.indexed("node", "n2")) == {}
    assert dict(informer.objects) == {"d/b": ""}
    assert informer.health() == OK
    await informed.end()


async def test_a_late_handler_hears_what_is_there(
    server: ApiServer, client: ApiClient, clock
) -> None:
    """As ADDED, then SYNCED; nothing after its end. One that raises does not affect others."""
    server.objects.create(COLLECTION, pod("a"))
    informed = Informed(client, clock)
    await informed.informer.wait_synced()
    late: list[tuple[ChangeKind, str]] = []

    def broken(_: Change[str]) -> None:
        raise RuntimeError("a bug in the handler")

    with capture_logs() as logs:
        informed.informer.add_handler(broken)
        end = informed.informer.add_handler(lambda change: late.append((change.kind, change.key)))
        await clock.until(lambda: server.watching == 1)
        server.objects.create(COLLECTION, pod("b"))
        await clock.until(lambda: len(late) == 3)
        end()
        server.objects.create(COLLECTION, pod("c"))
        await clock.until(lambda: len(informed.changes) == 4)

    assert late == [
        (ChangeKind.ADDED, "d/a"),
        (ChangeKind.SYNCED, ""),
        (ChangeKind.ADDED, "d/b"),
    ]
    assert {log["event"] for log in logs} == {"change.handler_failed"}
    await informed.end()


async def test_a_long_list_lets_others_run(server: ApiServer, client: ApiClient, clock) -> None:
    """A list is read and reported in slices, never longer than those."""
    count = 10 * SLICE
    for number in range(count):
        server.objects.create(COLLECTION, pod(f"p{number}"))
    informed = Informed(client, clock)
    longest = seen = 0
    while not informed.changes or informed.changes[-1].kind is not ChangeKind.SYNCED:
        await asyncio.sleep(0)
        longest, seen = max(longest, len(informed.changes) - seen), len(informed.changes)

    assert len(informed.changes) == count + 1
    assert longest <= SLICE + 1
    await informed.end()
