"""Events reach the cluster without blocking, and a cluster that refuses them is left alone."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.client import ApiClient
from koord.kube.events import (
    REPEAT_GAP,
    Event,
    EventLimits,
    EventRecorder,
    EventType,
    ObjectRef,
    Series,
    new_event,
)
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, hang, refuse

EVENTS = "/api/v1/events"
WEB = ObjectRef("v1", "Pod", "web", "shop", "uid-web")
DEFAULT, FAST = EventLimits(), EventLimits(rate=1000, burst=1000, writers=3)
PassTime = Callable[..., Awaitable[None]]


def event(message: str = "it is gone", about: ObjectRef = WEB) -> Event:
    return Event(about, EventType.WARNING, "evictPodSuccess", message, "koordlet-qosManager")


class Recording:
    """A recorder that runs, and what it counts."""

    def __init__(
        self, client: ApiClient, clock: SimulatedClock, limits: EventLimits = DEFAULT
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.observing = ""
        self.recorder = EventRecorder(
            client,
            "n1",
            clock,
            count=lambda outcome: self.counts.update([outcome]),
            observe_only=self._observe_only,
            limits=limits,
        )
        self.stop = Stop(clock)
        self.task = asyncio.create_task(self.recorder.run(self.stop))

    async def _observe_only(self) -> str:
        return self.observing

    def emit(self, *events: Event) -> None:
        for each in events:
            self.recorder.emit(each)


@pytest.fixture
async def recording(client: ApiClient, clock: SimulatedClock) -> AsyncIterator[Recording]:
    recording = Recording(client, clock)
    yield recording
    recording.stop.set()
    await asyncio.wait_for(recording.task, 60)


def stored(server: ApiServer) -> list[dict[str, Any]]:
    return server.objects.all(EVENTS)


async def test_an_event_is_what_koordinator_writes(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """core/v1, in the namespace of the object, with the source's component and host."""
    recording.emit(event())
    await pass_time(lambda: recording.counts["created"] == 1, step=0)

    [found] = stored(server)
    name = found["metadata"]["name"]
    assert name.startswith("web.")
    assert found == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "shop", "uid": "uid-1", "resourceVersion": "101"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web", "uid": "uid-web",
        },
        "type": "Warning",
        "reason": "evictPodSuccess",
        "message": "it is gone",
        "source": {"component": "koordlet-qosManager", "host": "n1"},
        "reportingComponent": "koordlet-qosManager",
        "reportingInstance": "n1",
        "firstTimestamp": "2023-11-14T22:13:20Z",
        "lastTimestamp": "2023-11-14T22:13:20Z",
        "count": 1,
    }  # fmt: skip
    assert [entry.path for entry in server.asked("create")] == ["/api/v1/namespaces/shop/events"]


async def test_events_of_objects_without_a_namespace_go_to_default(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """As Kubernetes has it."""
    recording.emit(event(about=ObjectRef("v1", "Node", "n1", uid="n1")))
    await pass_time(lambda: recording.counts["created"] == 1, step=0)

    [found] = stored(server)
    assert found["metadata"]["namespace"] == "default"
    assert found["involvedObject"] == {
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1",
    }  # fmt: skip


async def test_an_event_that_was_not_taken_lets_the_others_go_first(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """Those that happened later, too."""
    server.script(refuse(503, "Unavailable"), path="/api/v1/namespaces/shop/events")
    recording.emit(event("first"))
    await pass_time(lambda: len(server.requests) == 1, step=0)
    recording.emit(event("second"), event("third"))
    await pass_time(lambda: recording.counts["created"] == 3)

    assert [entry.json["message"] for entry in server.requests] == [
        "first",
        "second",
        "third",
        "first",
    ]


async def test_what_happens_every_second_is_one_event_that_is_counted(
    server: ApiServer, recording: Recording, clock: SimulatedClock, pass_time: PassTime
) -> None:
    """It is written at once, then once a minute with what has come together."""
    begun = clock.monotonic()

    def again() -> bool:
        recording.emit(event())
        return recording.counts["updated"] == 2

    await pass_time(again)

    assert clock.monotonic() - begun == pytest.approx(2 * REPEAT_GAP, abs=10)
    [found] = stored(server)
    assert found["count"] == pytest.approx(120, abs=12)
    assert found["lastTimestamp"] > found["firstTimestamp"]
    assert [entry.verb for entry in server.requests] == ["create", "patch", "patch"]
    assert set(server.requests[-1].json) == {"count", "lastTimestamp"}


async def test_an_event_that_the_server_has_forgotten_is_made_anew(
    server: ApiServer, recording: Recording, clock: SimulatedClock, pass_time: PassTime
) -> None:
    """API servers delete events after an hour."""
    recording.emit(event())
    await pass_time(lambda: recording.counts["created"] == 1)
    [first] = stored(server)
    server.objects.delete(EVENTS, f"shop/{first['metadata']['name']}")
    await clock.advance(REPEAT_GAP)
    recording.emit(event())
    await pass_time(lambda: recording.counts["created"] == 2)

    [second] = stored(server)
    assert second["metadata"]["name"] != first["metadata"]["name"]
    assert second["count"] == 2


async def test_different_events_are_written_at_a_bounded_rate(
    server: ApiServer, recording: Recording, clock: SimulatedClock, pass_time: PassTime
) -> None:
    """Twenty-five at once, then one every five seconds."""
    recording.emit(*(event(f"number {number}") for number in range(30)))
    await pass_time(lambda: recording.counts["created"] == 25, step=0)
    begun = clock.monotonic()
    await pass_time(lambda: recording.counts["created"] == 30)

    assert clock.monotonic() - begun >= 24
    assert len(stored(server)) == 30


async def test_several_writers_write_different_events_at_a_time(
    server: ApiServer, client: ApiClient, clock: SimulatedClock, pass_time: PassTime
) -> None:
    """A request that hangs holds up only its own; none is written twice."""
    recording = Recording(client, clock, FAST)
    server.script(hang, path="/api/v1/namespaces/shop/events")
    recording.emit(*(event(f"number {number}") for number in range(20)))
    await pass_time(lambda: recording.counts["created"] == 19, step=0)
    assert sorted(entry.json["message"] for entry in server.requests) == sorted(
        f"number {number}" for number in range(20)
    )
    recording.stop.set()
    await asyncio.wait_for(recording.task, 60)


async def test_more_than_the_queue_holds_is_counted_and_dropped(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """A repetition takes no place of its own."""
    recording.emit(*(event(f"number {number}") for number in range(EventLimits().waiting + 7)))
    recording.emit(event("number 0"))

    assert recording.counts["overflow"] == 7
    await pass_time(lambda: recording.counts["created"] == EventLimits().waiting)
    assert len(stored(server)) == EventLimits().waiting


@pytest.mark.parametrize("code", [400, 403, 404, 405, 413, 422])
async def test_a_server_that_does_not_want_events_is_asked_once(
    server: ApiServer, recording: Recording, pass_time: PassTime, capsys: Any, code: int
) -> None:
    """Each event is tried once, and the log says so once."""
    server.script(*[refuse(code, "No")] * 3, path="/api/v1/namespaces/shop/events")
    recording.emit(*(event(f"number {number}") for number in range(3)))
    await pass_time(lambda: recording.counts["refused"] == 3)
    recording.emit(event("another"))
    await pass_time(lambda: recording.counts["created"] == 1)

    assert len(server.asked("create")) == 4
    said = capsys.readouterr().err
    assert said.count("events.rejected") == 1
    assert said.count("events.accepted") == 1


@pytest.mark.parametrize(
    "fault",
    [refuse(429, "TooManyRequests"), refuse(500, "InternalError"), refuse(503, "Unavailable"),
     refuse(401, "Unauthorized"), hang],
    ids=["429", "500", "503", "401", "hang"],
)  # fmt: skip
async def test_a_trouble_that_passes_costs_no_event(
    server: ApiServer, recording: Recording, pass_time: PassTime, fault: Any
) -> None:
    """The event is sent again after a pause, and is there once."""
    server.script(fault, fault, method="POST")  # 401 is tried twice at once
    recording.emit(event("first"), event("second"))
    await pass_time(lambda: recording.counts["created"] == 2)

    assert sorted(found["message"] for found in stored(server)) == ["first", "second"]
    assert set(recording.counts) == {"created"}


async def test_an_answer_that_is_not_understood_is_not_asked_for_again(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """Whoever answers that is no API server."""
    server.script(answer(b'{"kind": "Ev'), method="POST")
    recording.emit(event())
    await pass_time(lambda: recording.counts["refused"] == 1)

    assert len(server.requests) == 1


async def test_an_answer_that_is_lost_does_not_double_the_event(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """The second attempt has the name of the first."""

    async def store_but_cut(request: Any) -> Any:
        await server.answer(request)
        request.transport.abort()

    server.script(store_but_cut, method="POST")
    recording.emit(event())
    await pass_time(lambda: recording.counts["created"] == 1)

    assert len(server.asked("create")) == 2
    assert len(stored(server)) == 1


async def test_events_outlive_an_outage_within_bounds(
    server: ApiServer, recording: Recording, clock: SimulatedClock, pass_time: PassTime, capsys: Any
) -> None:
    """Events of the last hour are sent when the server is back; the log says it once."""
    await server.stop()
    recording.emit(event("too old then"))
    await pass_time(lambda: "events.delayed" in capsys.readouterr().err)
    await pass_time(lambda: clock.monotonic() > 500 + 3000, step=20)
    recording.emit(event("not so old"))
    await pass_time(lambda: recording.counts["expired"] == 1, step=20)
    await server.start()
    await pass_time(lambda: recording.counts["created"] == 1, step=20)

    assert [found["message"] for found in stored(server)] == ["not so old"]
    assert capsys.readouterr().err.count("events.delayed") == 0


async def test_an_agent_that_only_observes_writes_no_event(
    server: ApiServer, recording: Recording, clock: SimulatedClock, pass_time: PassTime
) -> None:
    """Those of that time are dropped and counted, the later ones written."""
    recording.observing = "another agent is here"
    recording.emit(event("first"))
    await clock.settle()
    recording.observing = ""
    recording.emit(event("second"))
    await pass_time(lambda: recording.counts["created"] == 1)

    assert recording.counts["withheld"] == 1
    assert [found["message"] for found in stored(server)] == ["second"]


async def test_stop_does_not_wait_for_a_server_that_hangs(
    server: ApiServer, recording: Recording, pass_time: PassTime
) -> None:
    """Events are not worth a slow stop."""
    server.script(hang, method="POST")
    recording.emit(event())
    await pass_time(lambda: len(server.requests) == 1, step=0)
    recording.stop.set()

    await asyncio.wait_for(recording.task, 60)


@given(st.text(), st.text(min_size=1))
def test_any_text_makes_an_event_that_the_server_takes(message: str, name: str) -> None:
    """The message is one printable line within Kubernetes' limit."""
    about = ObjectRef("v1", "Pod", name, "shop", "u")
    series = Series(first=0.0, last=0.0, count=1, name="x")
    text = new_event(Event(about, EventType.NORMAL, "r", message * 200, "agent"), series, "n1")[
        "message"
    ]
    assert len(text.encode()) <= 1024
    assert not set(text) & {"\n", "\r", "\0", "\x1b"}
