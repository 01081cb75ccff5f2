"""Koordinator's REST services on the running scheduler."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from koord_scheduler.framework.extension.providers import (
    APIServiceProvider,
    Endpoint,
    PluginRequest,
)
from tests.support.scheduler.replicas import Fit, Replica, Start

PassTime = Callable[..., Any]
ROOT = "/apis/v1"


class Answers(Fit, APIServiceProvider):
    """A Filter plugin that answers."""

    def endpoints(self) -> Iterable[Endpoint]:
        return [
            Endpoint("GET", "/node/{node}", self.node),
            Endpoint("POST", "/sum", self.sum),
            Endpoint("GET", "/broken", self.broken),
        ]

    async def node(self, request: PluginRequest) -> object:
        if request.parameters["node"] != "n1":
            raise LookupError("it knows n1 only")
        return {"node": request.parameters["node"], "query": dict(request.query)}

    async def sum(self, request: PluginRequest) -> object:
        body = request.body or []
        if body == [0]:
            raise ValueError("wanted other numbers")
        return sum(body)  # type: ignore[call-overload]

    async def broken(self, request: PluginRequest) -> object:
        raise RuntimeError("no")


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.scheduler.replicas.Fit", Answers)


async def ask(replica: Replica, path: str) -> tuple[int, Any]:
    status, text = await replica.get(ROOT + path)
    return status, json.loads(text)


async def test_what_the_leader_answers(leading: Replica) -> None:
    plugin = "/plugins/NodeResourcesFit"
    assert await ask(leading, f"{plugin}/node/n1?a=b") == (200, {"node": "n1", "query": {"a": "b"}})
    assert await ask(leading, f"{plugin}/node/n9") == (404, {"message": "it knows n1 only"})
    assert (await ask(leading, f"{plugin}/other"))[0] == 404
    assert (await ask(leading, "/plugins/Other/node/n1"))[0] == 404
    status, found = await ask(leading, f"{plugin}/broken")
    assert (status, "NodeResourcesFit failed" in found["message"]) == (500, True)
    status, found = await ask(leading, "/__services__")
    assert found["GET"] == sorted(
        [
            f"{ROOT}/__services__",
            f"{ROOT}/nodes/:nodeName",
            f"{ROOT}{plugin}/node/:node",
            f"{ROOT}{plugin}/broken",
        ]
    )
    assert found["POST"] == [f"{ROOT}{plugin}/sum"]


async def test_a_body_is_json(leading: Replica) -> None:
    url = f"http://127.0.0.1:{leading.port}{ROOT}/plugins/NodeResourcesFit/sum"
    async with aiohttp.ClientSession() as session:
        for body, status, wanted in (
            (b"[1, 2]", 200, "3"),
            (b"[0]", 400, "wanted other numbers"),
            (b"[1", 400, "delimiter"),
        ):
            async with session.post(url, data=body) as answer:
                assert (answer.status, wanted in await answer.text()) == (status, True), body


async def test_a_node(leading: Replica) -> None:
    status, found = await ask(leading, "/nodes/n1")
    assert (status, found["name"], found["allocatable"]["cpu"]) == (200, "n1", 4000)
    pods = found["pods"] + (await ask(leading, "/nodes/n2"))[1]["pods"]
    assert pods == ["default/first"]
    assert (await ask(leading, "/nodes/n9"))[0] == 404
    assert (await leading.get(f"{ROOT}/nodes/n1", {"Host": "evil.example"}))[0] == 401


async def test_a_standby_answers_that_it_is_no_leader(
    start: Start, leading: Replica, pass_time: PassTime
) -> None:
    assert leading.settings.configuration.leader_election.leader_elect
    with capture_logs() as logs:
        standby = start()
        await pass_time(lambda: any(log["event"] == "scheduler.ready" for log in logs))
    status, found = await ask(standby, "/nodes/n1")
    assert (status, found) == (503, {"message": "the instance is not leader"})
