"""Cycles with extenders: filtered, scored and bound by a service over real connections."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from koord_scheduler.config.v1 import Extender
from tests.support.http_site import ScriptedSite
from tests.support.scheduler.loop import Loop

Answers = dict[str, Callable[[Any], Any]]


async def looping(site: ScriptedSite, answers: Answers, *nodes: str, **settings: Any) -> Loop:
    """A scheduler with one extender, whose verbs are those of the responses."""

    async def answer(request: Any) -> Any:
        return answers[request.path.strip("/")](json.loads(await request.read()))

    site.answer = answer
    verbs = {f"{verb}_verb": verb for verb in answers}
    given = {"weight": 1, "node_cache_capable": True, **verbs, **settings}
    extender = Extender(url_prefix=site.url, **given).complete()
    loop = await Loop().build(extenders=[extender])
    await loop.start()
    for name in nodes:
        loop.api.add_node(name)
    return loop


def only(*names: str) -> Callable[[Any], Any]:
    return lambda asked: {
        "NodeNames": [name for name in asked["NodeNames"] if name in names],
        "FailedNodes": {name: "no" for name in asked["NodeNames"] if name not in names},
    }


async def test_a_pod_goes_where_the_extender_allows(site: ScriptedSite) -> None:
    """And, of several nodes, where it scores most."""
    answers = {
        "filter": only("n2", "n3"),
        "prioritize": lambda asked: [
            {"Host": name, "Score": 10 if name == "n3" else 1} for name in asked["NodeNames"]
        ],
    }
    loop = await looping(site, answers, "n1", "n2", "n3")
    key = loop.api.add_pod("web")
    await loop.until(lambda: loop.where(key) != "")
    assert loop.where(key) == "n3"
    bodies = [json.loads(await one.read()) for one in site.requests]
    assert [sorted(one["NodeNames"]) for one in bodies] == [["n1", "n2", "n3"], ["n2", "n3"]]
    assert bodies[0]["Pod"]["spec"]["schedulerName"] == "p"
    await loop.end()


async def test_a_pod_that_is_allowed_nowhere_waits_for_any_event(site: ScriptedSite) -> None:
    """With the reasons of the extender beside those of plugins."""
    allowed: list[str] = []
    loop = await looping(site, {"filter": lambda asked: only(*allowed)(asked)}, "n1", "n2")
    loop.api.add_node("small", cpu="0")
    key = loop.api.add_pod("web")
    await loop.until(lambda: bool(loop.events))
    message = "0/3 nodes are available: 1 Insufficient cpu, 2 no."
    assert loop.events == [("web", "FailedScheduling", message)]
    assert loop.place(key) == "unschedulable"
    allowed.append("n2")
    loop.api.change("default/web", metadata={"labels": {"a": "b"}})
    loop.api.add_node("n4")
    await loop.advance(2)
    await loop.until(lambda: loop.where(key) == "n2")
    await loop.end()


async def test_one_that_fails_is_an_error_and_the_pod_is_tried_again(site: ScriptedSite) -> None:
    """Not a rejection: the empty answer that would reject all nodes in Kubernetes, too."""
    answer: list[Any] = [{}]
    loop = await looping(site, {"filter": lambda asked: answer[0] or only("n1")(asked)}, "n1")
    answer[0] = {"FailedNodes": {}}
    key = loop.api.add_pod("web")
    await loop.until(lambda: bool(loop.events))
    assert "wanted NodeNames, Nodes or Error" in loop.events[0][2]
    answer[0] = None
    await loop.advance(2)
    await loop.until(lambda: loop.where(key) == "n1")
    await loop.end()


async def test_the_nominated_node_is_asked_about_alone_first(site: ScriptedSite) -> None:
    """Where the extender rejects it, the others have their chance in the same cycle."""
    loop = await looping(site, {"filter": only("n2")}, "n1", "n2")
    await loop.settle()
    key = loop.api.add_pod("web")
    loop.api.change(key, status={"nominatedNodeName": "n1"})
    await loop.until(lambda: loop.where(key) != "")
    bodies = [json.loads(await one.read()) for one in site.requests]
    if len(bodies) == 2:
        assert [sorted(one["NodeNames"]) for one in bodies] == [["n1"], ["n1", "n2"]]
    assert loop.where(key) == "n2"
    await loop.end()


async def test_the_extender_binds(site: ScriptedSite) -> None:
    """No plugin does then; a failure unreserves, and the pod is tried again."""
    failing = [True]
    loop: Loop

    def bind(asked: Any) -> Any:
        if failing:
            failing.pop()
            return {"Error": "not now"}
        loop.api.change(f"{asked['PodNamespace']}/{asked['PodName']}", spec={"nodeName": "n1"})
        return {"Error": ""}

    loop = await looping(site, {"bind": bind}, "n1")
    key = loop.api.add_pod("web")
    await loop.until(lambda: bool(loop.events))
    assert "not now" in loop.events[0][2]
    assert loop.state.assumed_count == 0
    await loop.advance(2)
    await loop.until(lambda: loop.where(key) == "n1")
    assert loop.api.bindings == []
    await asyncio.sleep(0)
    await loop.end()
