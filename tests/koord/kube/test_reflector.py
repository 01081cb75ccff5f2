"""The copy of a collection is true again after any fault."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.kube.client import PODS, ApiClient, field_selector
from koord.kube.reflector import Change, MissingKind, Reflector, Watched, without_managed_fields
from koord.util.errors import InvalidObject
from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from tests.support.kube.apiserver import ApiServer, line, status_object
from tests.support.kube.faults import answer, begin, drop, endless, hang, refuse

COLLECTION = "/api/v1/pods"


def pod(name: str, value: object = "1", node: str = "worker-1") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "d", "managedFields": [{"manager": "m"}]},
        "spec": {"nodeName": node, "value": value},
    }


def read(item: dict[str, Any]) -> str:
    """What the tests keep of a pod."""
    value = item["spec"]["value"]
    if not isinstance(value, str):
        raise InvalidObject(f"{item['metadata']['name']}.spec.value", wanted="a text", found=value)
    return value


class Followed:
    """A reflector that runs, and the changes that it reported."""

    def __init__(self, client: ApiClient, clock, absent: MissingKind | None = None) -> None:
        self.changes: list[Change[str]] = []
        self.raises = False
        self.reflector = Reflector(
            client,
            Watched(
                name="pods",
                path=PODS.collection(),
                query={"fieldSelector": field_selector({"spec.nodeName": "worker-1"})},
                read=read,
                on_change=self._changed,
                component="of-pods",
                absent=absent,
            ),
            clock,
            draw=lambda: 0.0,
        )
        self.stop = Stop(clock)
        self.task = asyncio.ensure_future(self.reflector.run(self.stop))

    def _changed(self, change: Change[str]) -> None:
        self.changes.append(change)
        if self.raises:
            raise RuntimeError("a bug in the handler")

    @property
    def reported(self) -> list[tuple[str, str, str | None, str | None]]:
        return [(c.kind.value, c.key, c.old, c.new) for c in self.changes]

    @property
    def objects(self) -> dict[str, str]:
        return dict(self.reflector.objects)

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 60)


@pytest.fixture
async def follow(client: ApiClient, clock) -> AsyncIterator[Callable[..., Followed]]:
    followed = []

    def follow(absent: MissingKind | None = None) -> Followed:
        followed.append(Followed(client, clock, absent))
        return followed[-1]

    yield follow
    for each in followed:
        await each.end()


@pytest.fixture
async def following(server: ApiServer, follow, clock) -> Followed:
    """A reflector that has seen the pod d/a and watches."""
    server.objects.create(COLLECTION, pod("a"))
    followed = follow()
    await clock.until(lambda: server.watching == 1)
    followed.changes.clear()
    return followed


async def test_list_then_watch(server: ApiServer, follow, clock) -> None:
    """First all that is there, then SYNCED, then each change; other nodes' pods never."""
    server.objects.create(COLLECTION, pod("a"))
    server.objects.create(COLLECTION, pod("z", node="worker-2"))
    followed = follow()
    await clock.until(lambda: server.watching == 1)

    server.objects.create(COLLECTION, pod("b"))
    server.objects.replace(COLLECTION, pod("a", "2"))
    server.objects.create(COLLECTION, pod("y", node="worker-2"))
    server.objects.delete(COLLECTION, "d/b")
    await clock.until(lambda: len(followed.changes) == 5)

    assert followed.reported == [
        ("added", "d/a", None, "1"),
        ("synced", "", None, None),
        ("added", "d/b", None, "1"),
        ("modified", "d/a", "1", "2"),
        ("deleted", "d/b", "1", None),
    ]
    assert followed.objects == {"d/a": "2"}
    assert followed.reflector.synced
    assert followed.reflector.health() == OK


async def test_the_first_list_is_cheap_for_the_server(
    server: ApiServer, following: Followed
) -> None:
    """Its cache may answer, and only for our node."""
    first, watch = server.requests
    assert first.query == {
        "fieldSelector": "spec.nodeName=worker-1",
        "limit": "100",
        "resourceVersion": "0",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert watch.query["fieldSelector"] == "spec.nodeName=worker-1"
    assert watch.query["resourceVersion"] == str(server.objects.version)


async def test_a_watch_that_ends_is_resumed_where_it_was(
    server: ApiServer, following: Followed, clock, pass_time
) -> None:
    """No list, nothing reported twice, nothing missed; bookmarks move the place on."""
    await clock.advance(300)
    server.objects.create(COLLECTION, pod("z", node="worker-2"))
    server.bookmark()
    await asyncio.sleep(0.05)
    server.end_watches()
    await pass_time(lambda: len(server.asked("watch")) == 2)
    await clock.until(lambda: server.watching == 1)
    server.objects.create(COLLECTION, pod("b"))
    await clock.until(lambda: len(following.changes) == 1)

    assert len(server.asked("list")) == 1
    assert server.asked("watch")[1].query["resourceVersion"] == str(server.objects.version - 1)
    assert following.reported == [("added", "d/b", None, "1")]


@pytest.mark.parametrize("as_event", [True, False])
async def test_410_lists_again(
    server: ApiServer, following: Followed, clock, pass_time, as_event: bool
) -> None:
    """Only the differences are reported, and health stays good."""
    server.objects.create(COLLECTION, pod("gone"))
    await clock.until(lambda: len(following.changes) == 1)
    following.changes.clear()
    gone = line("ERROR", status_object(410, "Expired"))
    server.script(begin(gone) if as_event else refuse(410, "Expired"), watch=True)
    with capture_logs() as logs:
        server.silent = True
        server.objects.delete(COLLECTION, "d/gone")
        server.objects.replace(COLLECTION, pod("a", "2"))
        server.objects.create(COLLECTION, pod("new"))
        server.end_watches()
        await pass_time(lambda: len(following.changes) == 4)

    assert following.reported == [
        ("deleted", "d/gone", "1", None),
        ("modified", "d/a", "1", "2"),
        ("added", "d/new", None, "1"),
        ("synced", "", None, None),
    ]
    assert not [log for log in logs if log["log_level"] == "warning"]
    # Not older than what we know, but from the server's cache: etcd is spared.
    assert server.asked("list")[1].query["resourceVersionMatch"] == "NotOlderThan"
    assert following.reflector.health() == OK


@pytest.mark.parametrize(
    "refusal",
    [
        refuse(410, "Expired"),
        refuse(504, "Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}),
    ],
)
async def test_a_version_that_the_server_does_not_know_any_more(
    server: ApiServer, following: Followed, pass_time, refusal
) -> None:
    """Too old, or, after etcd was restored from a backup, too new: etcd has to say."""
    server.script(refuse(410, "Expired"), watch=True)
    server.script(refusal, method="GET", watch=False)
    server.end_watches()

    await pass_time(lambda: len(server.asked("list")) == 3)

    assert "resourceVersion" not in server.asked("list")[2].query


async def test_deleted_and_made_anew_while_we_watch(
    server: ApiServer, following: Followed, clock
) -> None:
    """Two objects that share a name."""
    server.objects.delete(COLLECTION, "d/a")
    server.objects.create(COLLECTION, pod("a", "anew"))
    await clock.until(lambda: len(following.changes) == 2)

    assert following.reported == [("deleted", "d/a", "1", None), ("added", "d/a", None, "anew")]


async def test_deleted_and_made_anew_while_we_were_away(
    server: ApiServer, following: Followed, pass_time
) -> None:
    """The list shows only the second object, and its uid gives it away."""
    server.silent = True
    server.objects.delete(COLLECTION, "d/a")
    server.objects.create(COLLECTION, pod("a", "anew"))
    server.objects.compact()
    server.end_watches()
    await pass_time(lambda: len(following.changes) == 3)

    assert following.reported[:2] == [("deleted", "d/a", "1", None), ("added", "d/a", None, "anew")]


async def test_a_late_deletion_of_the_older_object_does_not_hit_the_newer(
    server: ApiServer, following: Followed, clock
) -> None:
    """Two lists and watches may have the same changes in another order."""
    old = server.objects.get(COLLECTION, "d/a")
    stale = old | {"metadata": old["metadata"] | {"uid": "older"}}
    server.objects.note(COLLECTION, stale, "DELETED")
    server.objects.create(COLLECTION, pod("b"))
    await clock.until(lambda: len(following.changes) == 1)

    assert set(following.objects) == {"d/a", "d/b"}


async def test_the_last_good_state_stays_while_the_server_is_away(
    server: ApiServer, following: Followed, clock, pass_time
) -> None:
    """Half an hour without API server: the copy stays, and catches up without a list."""
    begun = clock.monotonic()
    with capture_logs() as logs:
        await server.stop()
        await pass_time(lambda: clock.monotonic() - begun > 1800, step=5)
        health = following.reflector.health()
        assert following.objects == {"d/a": "1"}
        server.objects.replace(COLLECTION, pod("a", "2"))
        await server.start()
        await pass_time(lambda: following.objects == {"d/a": "2"})

    assert health.status is HealthStatus.DEGRADED
    assert "127.0.0.1" in health.reason
    assert following.reflector.health() == OK
    assert [log["event"] for log in logs] == ["watch.failed", "watch.recovered"]
    assert len(server.asked("list")) == 1


async def test_an_absent_server_is_not_pestered(
    follow, server: ApiServer, clock, pass_time
) -> None:
    """Pauses grow to half a minute."""
    server.script(*[refuse(503)] * 200)
    begun = clock.monotonic()
    followed = follow()
    await pass_time(lambda: clock.monotonic() - begun > 600, step=2)

    assert 20 <= len(server.requests) <= 26
    assert not followed.reflector.synced
    assert followed.objects == {}
    assert followed.reflector.health().status is HealthStatus.DEGRADED


async def test_a_kind_that_is_missing_is_asked_for_every_few_seconds(
    follow, server: ApiServer, clock, pass_time
) -> None:
    """Its CRD was removed; as soon as it is back the copy is true again."""
    server.script(*[refuse(404)] * 200)
    begun = clock.monotonic()
    followed = follow()
    await pass_time(lambda: clock.monotonic() - begun > 300, step=1)
    assert 40 <= len(server.requests) <= 70

    server.unscript()
    end = clock.monotonic()
    await pass_time(lambda: followed.reflector.synced, step=1)
    assert clock.monotonic() - end <= 12


async def test_a_kind_that_most_clusters_lack_is_asked_for_less_and_less_often(
    follow, server: ApiServer, clock, pass_time
) -> None:
    """Pauses double up to the longest; nothing is wrong, and once it is there it is followed."""
    server.script(*[refuse(404)] * 200)
    begun = clock.monotonic()
    followed = follow(absent=MissingKind(pause=60.0, hint="", max_pause=600.0))
    await pass_time(lambda: clock.monotonic() - begun > 3600, step=10)
    assert len(server.requests) == 9  # at 0, 1, 3, 7, 15, 25, 35, 45 and 55 minutes
    assert followed.reflector.health() == OK

    server.unscript()
    end = clock.monotonic()
    await pass_time(lambda: followed.reflector.synced, step=10)
    assert clock.monotonic() - end <= 610


@pytest.mark.parametrize(("code", "named"), [(403, True), (500, False)])
async def test_a_missing_right_is_named_with_what_grants_it(
    follow, server: ApiServer, pass_time, code: int, named: bool
) -> None:
    """A refusal by RBAC, and no other trouble."""
    server.script(*[refuse(code)] * 200)
    followed = follow()

    await pass_time(lambda: followed.reflector.health().status is HealthStatus.DEGRADED)

    reason = followed.reflector.health().reason
    assert ("component of-pods of deploy/ grants it" in reason) is named


async def test_the_server_may_ask_for_a_longer_pause(
    follow, server: ApiServer, clock, pass_time
) -> None:
    """Retry-After goes before our own pauses, also when it is long."""
    server.script(refuse(429, headers={"Retry-After": "120"}))
    begun = clock.monotonic()
    follow()

    await pass_time(lambda: len(server.requests) > 1)

    assert 120 <= clock.monotonic() - begun <= 125


async def test_a_watch_that_stops_delivering_is_replaced(
    server: ApiServer, following: Followed, clock, pass_time
) -> None:
    """The connection lives, but nothing comes: after two bookmarks' time we ask again."""
    server.bookmark()
    await asyncio.sleep(0.05)
    server.silent = True
    server.objects.replace(COLLECTION, pod("a", "2"))
    begun = clock.monotonic()
    await pass_time(lambda: len(server.asked("watch")) == 2, step=2)
    server.silent = False
    server.objects.wake()
    await pass_time(lambda: following.objects == {"d/a": "2"}, step=0.5)

    assert 150 <= clock.monotonic() - begun <= 220
    assert len(server.asked("list")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        begin(b'{"type": "MODIFIED", "obj', then_cut=True),
        begin(b'{"type": "MODIFIED", "obj'),
        begin(b"garbage\n", then_hang=True),
        begin(line("MODIFIED", {"metadata": {}}), then_hang=True),
        begin(line("MODIFIED", {"metadata": {"resourceVersion": "999"}}), then_hang=True),
        begin(line("MODIFIED", {}), then_hang=True),
        begin(line("ERROR", status_object(500, "InternalError"))),
        endless(b"x" * 65536),
        drop,
        answer(b"", 500),
        *(refuse(code) for code in (401, 403, 404, 409, 413, 422, 500, 503)),
        refuse(429, headers={"Retry-After": "1"}),
        begin(),
    ],
)  # fmt: skip
async def test_a_spoilt_watch_heals(
    server: ApiServer, following: Followed, pass_time, fault
) -> None:
    """Whatever a watch ends with, the next change arrives, once."""
    server.script(fault, fault, watch=True)
    server.end_watches()
    await pass_time(lambda: len(server.asked("watch")) >= 3, step=0.5)
    server.objects.replace(COLLECTION, pod("a", "2"))

    await pass_time(lambda: following.objects == {"d/a": "2"}, step=0.5)
    await pass_time(lambda: following.reflector.health() == OK, step=0.5)

    assert [entry for entry in following.reported if entry[0] != "synced"] == [
        ("modified", "d/a", "1", "2")
    ]


@pytest.mark.parametrize(
    "fault",
    [
        hang,
        drop,
        answer(b"{}"),
        answer(b""),
        answer(b'{"metadata":{},"items":[{}]}'),
        begin(b'{"items"', then_hang=True),
        *(refuse(code) for code in (401, 403, 404, 409, 410, 413, 422, 500, 503)),
        refuse(429, headers={"Retry-After": "1"}),
    ],
)
async def test_a_spoilt_list_heals(server: ApiServer, follow, clock, pass_time, fault) -> None:
    """The daemon starts without an API server, and catches up."""
    server.objects.create(COLLECTION, pod("a"))
    server.script(fault, fault)
    followed = follow()

    await pass_time(lambda: followed.reflector.synced)

    assert followed.objects == {"d/a": "1"}
    assert followed.reported == [("added", "d/a", None, "1"), ("synced", "", None, None)]


async def test_a_list_that_expires_between_pages_begins_again(
    server: ApiServer, follow, pass_time
) -> None:
    """Nothing of the half list is taken over."""
    for index in range(150):
        server.objects.create(COLLECTION, pod(f"p{index:03}"))

    async def too_slow(request):
        server.objects.delete(COLLECTION, "d/p000")
        server.objects.compact()
        return await refuse(410, "Expired")(request)

    server.script(server.answer, too_slow)
    followed = follow()
    await pass_time(lambda: followed.reflector.synced)

    assert len(followed.objects) == 149
    assert len(server.asked("list")) == 4


async def test_the_last_good_value_stays_when_an_object_is_spoilt(
    server: ApiServer, following: Followed, clock
) -> None:
    """Health and log say which field; the rest goes on."""
    with capture_logs() as logs:
        server.objects.replace(COLLECTION, pod("a", 5))
        server.objects.replace(COLLECTION, pod("a", 5) | {"more": 1})
        server.objects.create(COLLECTION, pod("b"))
        await clock.until(lambda: len(following.changes) == 1)
    health = following.reflector.health()

    assert following.objects == {"d/a": "1", "d/b": "1"}
    assert health.status is HealthStatus.DEGRADED
    assert "a.spec.value: wanted a text, found 5" in health.reason
    assert [log["event"] for log in logs] == ["object.rejected"]

    server.objects.replace(COLLECTION, pod("a", "2"))
    await clock.until(lambda: len(following.changes) == 2)
    assert following.reflector.health() == OK
    assert following.reported[-1] == ("modified", "d/a", "1", "2")


async def test_a_spoilt_object_of_the_same_name_is_not_the_old_one(
    server: ApiServer, following: Followed, clock
) -> None:
    """The old one is gone, and the new one not understood."""
    server.objects.delete(COLLECTION, "d/a")
    server.objects.create(COLLECTION, pod("a", 5))
    await clock.until(lambda: bool(following.reflector.rejected))

    assert following.objects == {}
    server.objects.delete(COLLECTION, "d/a")
    await clock.until(lambda: not following.reflector.rejected)


async def test_a_handler_that_raises_is_logged(
    server: ApiServer, following: Followed, clock
) -> None:
    """The copy stays true for all other readers."""
    following.raises = True
    with capture_logs() as logs:
        server.objects.create(COLLECTION, pod("b"))
        await clock.until(lambda: "d/b" in following.objects)

    assert [log["event"] for log in logs] == ["change.handler_failed"]
    assert server.watching == 1


async def test_stop_ends_at_once(server: ApiServer, following: Followed, clock) -> None:
    """In the middle of a watch, without waiting for it."""
    await following.end()
    await clock.until(lambda: server.watching == 0)

    assert clock.sleepers == 0


def test_managed_fields_are_dropped() -> None:
    """The object that came in stays as it was."""
    item = pod("a")

    assert "managedFields" not in without_managed_fields(item)["metadata"]
    assert "managedFields" in item["metadata"]
