"""A running scheduler answers about its pods: over HTTP, and by the command."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from koord_scheduler.cli.explain import main
from tests.support.kube.apiserver import ApiServer
from tests.support.scheduler.replicas import PODS, Fit, Replica, pending, placed

PassTime = Callable[..., Any]
Capture = pytest.CaptureFixture[str]


async def explain(replica: Replica, pod: str) -> dict[str, Any]:
    status, text = await replica.get(f"/explain?pod={pod}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.usefixtures("large")
async def test_a_pending_pod_has_the_cause_first(leading: Replica) -> None:
    found = await explain(leading, "default/large")
    assert (found["leader"], found["boundTo"], found["queue"]) == (True, "", "unschedulable")
    assert (found["attempts"], found["rejectedBy"]) == (1, ["NodeResourcesFit"])
    decision = found["decision"]
    assert decision["message"] == "0/2 nodes are available: 2 Insufficient cpu."
    assert decision["advice"][0] == "2 of 2 nodes are rejected by NodeResourcesFit alone"


async def test_of_a_placed_pod_it_says_where_it_would_go_now(
    leading: Replica,
    server: ApiServer,
) -> None:
    found = await explain(leading, "first")
    assert found["boundTo"] == placed(server)["first"]
    assert found["decision"]["feasible"] == 2
    totals = {one["total"] for one in found["decision"]["scores"]}
    assert totals == {100}  # both are empty, if it is not there


async def test_of_a_placed_pod_it_asks_as_if_it_were_on_no_node(
    leading: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the plugin NodeName would exclude all nodes but its own."""
    asked: list[str] = []
    filter_all = Fit.filter_all

    def noting(self: Fit, state: Any, pod: Any, nodes: Any) -> Any:
        asked.append(pod.node)
        return filter_all(self, state, pod, nodes)

    monkeypatch.setattr(Fit, "filter_all", noting)
    assert (await explain(leading, "first"))["boundTo"]
    assert set(asked) == {""}


@pytest.mark.parametrize(
    ("query", "status"),
    [("?pod=default/gone", 404), ("", 400), (f"?pod={'x' * 600}", 400)],
)
async def test_questions_without_an_answer(
    leading: Replica,
    query: str,
    status: int,
) -> None:
    assert (await leading.get(f"/explain{query}"))[0] == status
    assert (await leading.get("/explain?pod=first", {"Host": "evil.example"}))[0] == 401


async def test_a_pod_of_another_scheduler(
    leading: Replica,
    server: ApiServer,
    pass_time: PassTime,
) -> None:
    server.objects.create(PODS, pending("other", scheduler="default-scheduler"))
    await pass_time(lambda: leading.metric("scheduler_cache_size", type="pods") or 0)
    while (await leading.get("/explain?pod=other"))[0] == 404:
        await pass_time(lambda: True)
    found = await explain(leading, "other")
    assert (found["decision"], found["schedulers"]) == (None, ["koord-scheduler"])


@pytest.mark.usefixtures("large")
async def test_the_command_shows_it(leading: Replica, capsys: Capture) -> None:
    address = f"--address=http://127.0.0.1:{leading.port}"
    assert await asyncio.to_thread(main, ["default/large", address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "default/large is pending: it waits until something happens that may help",
        "tried 1 times, rejected by NodeResourcesFit; as things are now:",
        "default/large stays pending: 0 of 2 nodes are feasible",
    ]
    assert "what would help" in lines
    assert await asyncio.to_thread(main, ["gone", address]) == 1
    assert "404" in capsys.readouterr().err
