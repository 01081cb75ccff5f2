"""What a whole scheduler gives its status page."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from koord_scheduler import page
from koord_scheduler.plugin.koordinator import NodePart
from tests.support.kube.apiserver import ApiServer
from tests.support.scheduler.replicas import PODS, Replica, pending, placed

PassTime = Callable[..., Any]


async def look(replica: Replica) -> dict[str, Any]:
    """All sections: the first line of the stream."""
    url = f"http://127.0.0.1:{replica.port}/page/stream"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        line = json.loads(await answer.content.readline())
    assert line["whole"] is True
    return dict(line["sections"])


async def detail(replica: Replica, pod: str) -> dict[str, Any]:
    status, text = await replica.get(f"/page/detail/pod?name={pod}")
    assert status == 200, text
    return dict(json.loads(text))


@pytest.mark.usefixtures("large")
async def test_the_queue_and_the_latest_decisions(leading: Replica, server: ApiServer) -> None:
    sections = await look(leading)

    assert sections["state"] == {"leads": True, "serves": False, "profiles": ["koord-scheduler"]}
    counts = sections["counts"]
    assert (counts["nodes"], counts["unschedulable"], counts["active"]) == (2, 1, 0)
    assert (counts["bound"], counts["failed"]) == (len(placed(server)), 1)
    [waits] = sections["queue"]
    assert (waits["pod"], waits["place"], waits["attempts"]) == (
        "default/large", "unschedulable", 1,
    )  # fmt: skip
    assert waits["why"] == "rejected by NodeResourcesFit"
    newest, *others = sections["recent"]
    assert (newest["pod"], newest["node"]) == ("default/large", "")
    assert newest["message"] == "0/2 nodes are available: 2 Insufficient cpu."
    assert {one["pod"].partition("/")[2]: one["node"] for one in others} == placed(server)
    assert {"name", "status", "reason"} == set(sections["health"]["parts"][0])


@pytest.mark.usefixtures("large")
async def test_the_scores_of_a_pod(leading: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best nodes by plugin; of a pod without one, what excludes them."""
    found = await detail(leading, "default/first")
    assert [one["plugins"].keys() for one in found["decision"]["scores"]] == [
        {"NodeResourcesFit"}, {"NodeResourcesFit"},
    ]  # fmt: skip
    monkeypatch.setattr(page, "MAX_NODES", 1)
    decision = (await detail(leading, "default/large"))["decision"]
    assert (decision["node"], len(decision["excluded"])) == (None, 1)
    assert decision["blockers"][0]["plugin"] == "NodeResourcesFit"


async def test_the_queue_is_bounded(
    leading: Replica, server: ApiServer, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are counted."""
    monkeypatch.setattr(page, "MAX_PODS", 2)
    for number in range(5):
        server.objects.create(PODS, pending(f"large-{number}", cpu="40"))
    await pass_time(lambda: leading.metric("scheduler_pending_pods", queue="unschedulable") == 5)
    sections = await look(leading)
    assert (len(sections["queue"]), sections["counts"]["unschedulable"]) == (2, 5)


async def test_the_parts_of_a_node(leading: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plugins that know any there are none; of many pods the first are named."""
    status, text = await leading.get("/page/detail/node?name=n1")
    assert (status, json.loads(text)) == (200, {"node": "n1", "pods": [], "plugins": {}})
    parts = [
        NodePart(("socket 0",), "CPU 0", ("a/a",), 1.0),
        NodePart(("socket 0",), "CPU 1", ("a/a", "b/b"), 0.123456, "note"),
    ]
    monkeypatch.setattr(page, "node_parts", lambda profiles, node: {"Parts": parts})
    monkeypatch.setattr(page, "MAX_HOLDERS", 1)
    found = json.loads((await leading.get("/page/detail/node?name=n1"))[1])
    assert found["pods"] == ["a/a"]
    place = {"place": ["socket 0"]}
    assert found["plugins"]["Parts"] == [
        {**place, "name": "CPU 0", "used": 1.0, "note": "", "pods": [0]},
        {**place, "name": "CPU 1", "used": 0.12, "note": "note", "pods": [0]},
    ]


async def test_who_gets_nothing(leading: Replica) -> None:
    assert (await leading.get("/page/detail/pod?name=default/gone"))[0] == 404
    assert (await leading.get("/page/detail/node?name=gone"))[0] == 404
    assert (await leading.get("/page/detail/zone?name=n1"))[0] == 404
    other = {"Host": "evil.example"}
    assert (await leading.get("/page/detail/pod?name=default/first", other))[0] == 401
    status, text = await leading.get("/")
    assert (status, 'data-view="scheduler.js"' in text) == (200, True)
    assert (await leading.get("/page/scheduler.js"))[0] == 200
