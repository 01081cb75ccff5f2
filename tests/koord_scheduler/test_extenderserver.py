"""The verbs over real connections, with plugins of tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.component.http.limits import PER_LOOPBACK
from koord.component.http.responses import HttpError
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.kube.client import ApiClient
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.extenderserver import (
    MAX_BINDING_BYTES,
    ExtenderApp,
    ExtenderMetrics,
    PluginHost,
    served_verbs,
    wire_scores,
)
from koord_scheduler.framework.interfaces import (
    PreBindPlugin,
    PreFilterPlugin,
    ReservePlugin,
    pod_changes,
)
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import CycleState, PreFilterResult, Status
from tests.support.clusters import node, pod
from tests.support.scheduler.framework import Kit, PlainFilter, PlainScore, VectorScore
from tests.support.scheduler.loop import Api, PostingBinder

NAMES = ["n1", "n2", "n3"]
POD_JSON = pod("web", schedulerName="p")


class Reserving(ReservePlugin):
    """Writes down what is reserved; rejects a pod on n3."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.calls.append(f"reserve {node_name}")
        return Status.unschedulable("not there") if node_name == "n3" else None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        self.calls.append(f"unreserve {node_name}")


class Choosing(ReservePlugin, PreBindPlugin):
    """Gives a pod a device, in an annotation, and takes its time to fail."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        pod_changes(state).annotations["device"] = "0"
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Nothing to give back."""

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.begun.set()
        await self.may_end.wait()
        return Status.unschedulable("it is gone")


class Only(PreFilterPlugin):
    """Names one node, or rejects the pod."""

    def __init__(self, answer: PreFilterResult | Status) -> None:
        self.answer = answer

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        return self.answer


class Served:
    """A server, its plugins and its cluster."""

    def __init__(self) -> None:
        self.state = SchedulerCache(SimulatedClock())
        self.kit = Kit(SimulatedClock(), self.state)
        self.api = Api(self.state)
        self.url = ""
        self.server: Any = None
        self.binder = PostingBinder()
        self.binder.client = ApiClient(self.api, self.kit.clock, draw=lambda: 0.0)
        for name in NAMES:
            self.api.add_node(name)
        self.api.pods["default/web"] = deepcopy(POD_JSON)  # which a binding changes
        self.api._publish("default/web")
        self.api.deliver()

    async def start(
        self, *, weights: Mapping[str, int] | None = None, fail_open: bool = False, **points: Any
    ) -> "Served":
        profile = await self.kit.profile(
            weights=weights, **{"bind": {"PostingBinder": self.binder}, **points}
        )
        self.profile: ProfilePlugins = profile
        self.asked = 0
        host = PluginHost([profile], self.state, self.kit.clock, fail_open=fail_open)
        metrics = ExtenderMetrics(self.kit.exposition)
        verbs, clock = served_verbs([profile]), self.kit.clock
        app = ExtenderApp(host, verbs, 5.0, metrics, clock, guard=self._guard)
        self.server = HttpServer(app.application(), Address("127.0.0.1", 0), clock=clock)
        await self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        return self

    async def _guard(self, request: web.Request) -> None:
        """Lets all in whose body is to be read."""
        self.asked += 1
        if "Stranger" in request.headers:
            raise HttpError(401, "wanted another", headers={"Connection": "close"})

    async def ask(self, verb: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status, and the response as JSON or text."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/{verb}", data=data, headers=given) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if answer.status == 200 else text

    async def about(self, verb: str, *names: str) -> Any:
        status, answer = await self.ask(
            verb, {"Pod": POD_JSON, "Nodes": None, "NodeNames": list(names or NAMES)}
        )
        assert status == 200, answer
        return answer


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    made: list[Served] = []

    async def start(**settings: Any) -> Served:
        made.append(Served())
        return await made[-1].start(**settings)

    yield start
    for one in made:
        await one.server.stop()


async def test_filter_echoes_what_passes_with_reasons_for_the_rest(start: Start) -> None:
    """In the order in which it was asked; a node that is not known passes."""
    answers = {"n2": Status.unschedulable("busy"), "n3": Status.unresolvable("wrong zone")}
    served = await start(filter={"Mine": PlainFilter(answers)})
    assert await served.about("filter", "n3", "unknown", "n2", "n1") == {
        "Nodes": None,
        "NodeNames": ["unknown", "n1"],
        "FailedNodes": {"n2": "busy"},
        "FailedAndUnresolvableNodes": {"n3": "wrong zone"},
        "Error": "",
    }
    items = [node(name) for name in ("n2", "n1")]
    _, whole = await served.ask("filter", {"pod": POD_JSON, "nodes": {"items": items}})
    assert whole["Nodes"]["items"] == [items[1]]
    assert whole["NodeNames"] is None
    labels = {"verb": "filter", "code": "200", "outcome": "ok"}
    name = "scheduler_extender_request_duration_seconds_count"
    assert served.kit.sample(name, **labels) == 2


@pytest.mark.parametrize(
    ("answer", "failed", "unresolvable", "left"),
    [
        (Status.unschedulable("not now"), NAMES, [], []),
        (Status.unresolvable("never"), [], NAMES, []),
        (PreFilterResult(frozenset({"n2"})), [], ["n1", "n3"], ["n2"]),
        (Status.skip(), [], [], NAMES),
    ],
)
async def test_pre_filter_is_asked_once_for_all_nodes(
    start: Start, answer: Any, failed: list[str], unresolvable: list[str], left: list[str]
) -> None:
    """What it rejects, all nodes are rejected for."""
    served = await start(preFilter={"Only": Only(answer)})
    found = await served.about("filter")
    assert list(found["FailedNodes"]) == failed
    assert list(found["FailedAndUnresolvableNodes"]) == unresolvable
    assert found["NodeNames"] == left


async def test_scores_of_plugins_are_weighed_and_rounded(start: Start) -> None:
    """The worked example: 57, 75 and 60 are 6, 8 and 6; an unknown node has 0."""
    served = await start(
        score={
            "LoadAware": PlainScore({"n1": 72, "n2": 63, "n3": 90}),
            "NetworkTraffic": PlainScore({"n1": 29, "n2": 100, "n3": 0}),
        },
        weights={"LoadAware": 2},
    )
    answer = await served.about("prioritize", *NAMES, "unknown")
    assert {one["Host"]: one["Score"] for one in answer} == {
        "n1": 6, "n2": 8, "n3": 6, "unknown": 0,
    }  # fmt: skip
    percents = np.array([-7, 0, 4, 5, 94, 95, 100, 850])
    assert wire_scores(percents).tolist() == [0, 0, 0, 1, 9, 10, 10, 10]


async def test_a_plugin_that_fails_is_an_error_or_let_pass(start: Start) -> None:
    """As the flag says; its scores never fail a pod."""
    broken = {"Broken": PlainFilter({"n1": "no status"})}
    closed = await start(filter=broken)
    answer = await closed.about("filter")
    assert 'running Filter plugin "Broken"' in answer["Error"]
    assert answer["NodeNames"] == []
    opened = await start(filter=broken, fail_open=True)
    assert (await opened.about("filter"))["NodeNames"] == NAMES
    for scores in (np.array([1.0, np.nan, 2.0]), np.array([1, 101, 2]), "text"):
        served = await start(score={"Broken": VectorScore(scores)})
        answer = await served.about("prioritize")
        assert [one["Score"] for one in answer] == [0, 0, 0]


async def test_a_pod_is_bound_once_by_the_plugins(start: Start) -> None:
    """Reserved before; asked again it is bound already; a failure releases it."""
    reserving = Reserving()
    served = await start(reserve={"Reserving": reserving})
    asked = {
        "PodName": "web", "PodNamespace": "default", "PodUID": "uid-default-web", "Node": "n3",
    }  # fmt: skip
    assert await served.ask("bind", asked) == (200, {"Error": "not there"})
    assert reserving.calls == ["reserve n3", "unreserve n3"]
    assert served.state.assumed_count == 0
    asked["Node"] = "n1"
    assert await served.ask("bind", asked) == (200, {"Error": ""})
    assert await served.ask("bind", asked) == (200, {"Error": ""})
    served.api.deliver()
    assert await served.ask("bind", asked) == (200, {"Error": ""})
    assert served.api.bindings == [("default/web", "n1")]
    _, other = await served.ask("bind", {**asked, "Node": "n2"})
    assert "bound to node n1" in other["Error"]
    _, stranger = await served.ask("bind", {**asked, "PodUID": "another"})
    assert "is not known" in stranger["Error"]


async def test_what_was_chosen_for_a_pod_counts_while_it_is_being_bound(start: Start) -> None:
    """Otherwise the next pod could be given the same. A failure gives it back."""
    plugin = Choosing()
    served = await start(reserve={"Choosing": plugin}, preBind={"Choosing": plugin})
    uid = POD_JSON["metadata"]["uid"]
    asked = {"PodName": "web", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
    binding = asyncio.create_task(served.ask("bind", asked))
    await plugin.begun.wait()

    assumed = served.state.pod("default/web")

    assert assumed is not None
    assert (assumed.node, dict(assumed.annotations).get("device")) == ("n1", "0")
    plugin.may_end.set()
    assert await binding == (200, {"Error": "it is gone"})
    assert served.state.assumed_count == 0


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {}, 400),
        (b"no json", {}, 400),
        (b"[" * 100_000, {}, 400),
        ({"Pod": POD_JSON}, {}, 400),
        ({"Pod": {"metadata": 5}, "NodeNames": []}, {}, 400),
        ({"Pod": POD_JSON, "NodeNames": [1]}, {}, 400),
        ({"Pod": POD_JSON, "NodeNames": []}, {"Content-Type": "text/plain"}, 415),
    ],
)
async def test_what_is_no_question_is_refused(
    start: Start, body: Any, headers: dict[str, str], status: int
) -> None:
    """A page in a browser cannot ask, either."""
    served = await start(filter={"Mine": PlainFilter({})})
    assert (await served.ask("filter", body, **headers))[0] == status
    assert (await served.ask("preempt", body, **headers))[0] == 404
    assert (await served.about("filter"))["NodeNames"] == NAMES


@pytest.mark.parametrize(("seconds", "filtered", "scores"), [(3.9, [], [10]), (4.1, ["n1"], [0])])
async def test_answers_come_in_time(
    start: Start, seconds: float, filtered: list[str], scores: list[int]
) -> None:
    """After four fifths of the timeout plugins are not asked: all nodes pass, and score 0."""
    rejecting = PlainFilter({"n1": Status.unschedulable("x")})
    served = await start(filter={"Mine": rejecting}, score={"Mine2": PlainScore({"n1": 100})})

    async def slow() -> AsyncIterator[bytes]:
        before = served.asked
        yield b'{"NodeNames": ["n1"], "Pod": '
        await served.kit.clock.until(lambda: served.asked > before)
        served.kit.clock.tick(seconds)
        yield json.dumps(POD_JSON).encode() + b"}"

    headers = {"Content-Type": "application/json"}
    found = []
    async with aiohttp.ClientSession() as session:
        for verb in ("filter", "prioritize"):
            url = f"{served.url}/{verb}"
            async with session.post(url, data=slow(), headers=headers) as answer:
                found.append(await answer.json())
    assert found[0]["NodeNames"] == filtered
    assert [one["Score"] for one in found[1]] == scores


async def test_a_crowd_that_never_ends_its_questions_keeps_no_other_out(start: Start) -> None:
    """More of them than one peer may have connections."""
    served = await start(filter={"Mine": PlainFilter({})})
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    clients = []
    for _ in range(2 * PER_LOOPBACK):
        _, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        writer.write(head + b"Content-Length: 1000000\r\n\r\n{")
        clients.append(writer)
    for _ in range(3):
        assert (await served.about("filter"))["NodeNames"] == NAMES
    for writer in clients:
        writer.close()


async def test_a_stranger_is_refused_before_its_body_is_read(start: Start) -> None:
    """A body that never comes costs nothing."""
    served = await start(filter={"Mine": PlainFilter({})})
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    head = "POST /filter HTTP/1.1\r\nHost: x\r\nStranger: yes\r\nContent-Type: application/json"
    writer.write(f"{head}\r\nContent-Length: 120000000\r\n\r\n".encode())
    async with asyncio.timeout(30):
        assert b" 401 " in await reader.readline()
    writer.close()
    labels = {"verb": "filter", "code": "401", "outcome": "error"}
    name = "scheduler_extender_request_duration_seconds_count"
    assert served.kit.sample(name, **labels) == 1


@pytest.mark.parametrize("size", [1, 100_000])
async def test_whole_nodes_come_back_as_they_were(start: Start, size: int) -> None:
    """Also where question and answer are read and written in parts."""
    served = await start(filter={"Mine": PlainFilter({"n2": Status.unschedulable("x")})})
    items = [{**node(name), "spec": {"note": "y" * size}} for name in NAMES]
    _, answer = await served.ask("filter", {"Pod": POD_JSON, "Nodes": {"items": items}})
    assert answer["Nodes"]["items"] == [items[0], items[2]]
    assert (answer["NodeNames"], list(answer["FailedNodes"])) == (None, ["n2"])


async def test_a_binding_is_small(start: Start) -> None:
    served = await start(bind={"Mine": PostingBinder()})
    assert (await served.ask("bind", b" " * (MAX_BINDING_BYTES + 1)))[0] == 413
