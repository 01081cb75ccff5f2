"""Extenders over real connections: order, failures, weights, managed resources."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.util.clock import SystemClock
from koord.util.errors import KoordError
from koord_scheduler.config.v1 import Extender, ExtenderManagedResource, ExtenderTLSConfig
from koord_scheduler.extenders import ExtenderFailed, Extenders, api_config
from koord_scheduler.framework.status import Code
from tests.support.clusters import pod, read_pod
from tests.support.http_site import ScriptedSite
from tests.support.scheduler.framework import make_pod

NAMES = ("n1", "n2", "n3")


class Objects:
    """Bodies of pods and nodes."""

    async def pod(self, pod: ClusterPod) -> bytes:
        return json.dumps({"metadata": {"name": pod.name, "uid": pod.uid}}).encode()

    async def nodes(self, names: Sequence[str]) -> tuple[bytes, ...]:
        return tuple(json.dumps({"metadata": {"name": name}}).encode() for name in names)


Make = Callable[..., Extenders]


@pytest.fixture
async def make(site: ScriptedSite) -> AsyncIterator[Make]:
    """Extenders at paths /a, /b, ... of the site, each with these settings."""
    made: list[Extenders] = []

    def make(*settings: dict[str, Any]) -> Extenders:
        found = [
            Extender(**{"url_prefix": f"{site.url}/{letter}/", "node_cache_capable": True, **one})
            for letter, one in zip("abc", settings, strict=False)
        ]
        found = sorted((one.complete() for one in found), key=lambda one: one.ignorable)
        made.append(Extenders(found, Objects(), SystemClock()))
        return made[-1]

    yield make
    for one in made:
        await one.close()


def paths(site: ScriptedSite) -> list[str]:
    return [one.path for one in site.requests]


async def test_each_sees_what_those_before_it_left(site: ScriptedSite, make: Make) -> None:
    """Those that may fail come last. Reasons make rejections; without one it is final."""
    answers = {
        "/a/filter": {"NodeNames": ["n1", "n3"], "FailedNodes": {"n2": "busy"}},
        "/b/f": {
            "NodeNames": ["n1"],
            "FailedNodes": {"n3": "full"},
            "FailedAndUnresolvableNodes": {"n3": "never"},
        },
    }
    site.answer = lambda request: answers[request.path]
    extenders = make({"filter_verb": "filter"}, {"filter_verb": "f", "ignorable": True})
    found = await extenders.filter(make_pod(), NAMES)
    assert found.names == ("n1",)
    rejections = {name: (one.code, one.message) for name, one in found.rejections.items()}
    assert rejections == {
        "n2": (Code.UNSCHEDULABLE, "busy"),
        "n3": (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "never"),
    }
    assert {one.plugin for one in found.rejections.values()} == {"Extender"}
    assert paths(site) == ["/a/filter", "/b/f"]
    sent = [json.loads(await one.read()) for one in site.requests]
    assert [one["NodeNames"] for one in sent] == [["n1", "n2", "n3"], ["n1", "n3"]]
    assert sent[0]["Pod"]["metadata"]["name"] == "web"
    assert site.requests[0].content_type == "application/json"

    site.answer = lambda request: {"NodeNames": []}
    dropped = await extenders.filter(make_pod(), ("n1",))
    assert dropped.rejections["n1"].code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE


async def test_whole_nodes_travel_to_one_without_a_cache(site: ScriptedSite, make: Make) -> None:
    """And come back."""
    site.answer = lambda request: {"Nodes": {"items": [{"metadata": {"name": "n2"}}]}}
    extenders = make({"filter_verb": "filter", "node_cache_capable": False})
    assert (await extenders.filter(make_pod(), NAMES)).names == ("n2",)
    sent = json.loads(await site.requests[0].read())
    assert [one["metadata"]["name"] for one in sent["Nodes"]["items"]] == list(NAMES)
    assert sent["NodeNames"] is None


@pytest.mark.parametrize(
    "answer",
    [
        500,
        404,
        302,
        b"",
        b"<html>",
        {},
        {"Error": "no idea"},
        {"NodeNames": ["n1", "elsewhere"]},
        {"NodeNames": None},
    ],
)
async def test_one_that_fails_fails_the_cycle_unless_it_may(
    site: ScriptedSite, make: Make, answer: Any
) -> None:
    """Nothing is tried twice."""
    site.answer = lambda request: answer
    with pytest.raises(ExtenderFailed, match=f"^extender {site.url}/a/: "):
        await make({"filter_verb": "filter"}).filter(make_pod(), NAMES)
    assert len(site.requests) == 1
    ignorable = make({"filter_verb": "filter", "ignorable": True})
    assert (await ignorable.filter(make_pod(), NAMES)).names == NAMES


async def test_the_whole_answer_has_the_timeout(site: ScriptedSite, make: Make) -> None:
    """Also where it begins in time."""
    hung = asyncio.Event()

    async def answer(request: Any) -> Any:
        await hung.wait()

    site.answer = answer
    extenders = make({"filter_verb": "filter", "http_timeout": 0.1})
    with pytest.raises(ExtenderFailed, match=r"within 0\.1 s"):
        await extenders.filter(make_pod(), NAMES)
    hung.set()


async def test_scores_count_by_weight(site: ScriptedSite, make: Make) -> None:
    """Each point is ten of a plugin's; all are asked at once, and one that fails adds nothing."""
    answers: dict[str, Any] = {
        "/a/p": [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 7}],
        "/b/p": [{"Host": "n2", "Score": 3}, {"Host": "unknown", "Score": 1}],
        "/c/p": [{"Host": "n1", "Score": 85}],
    }
    site.answer = lambda request: answers[request.path]
    extenders = make(*({"prioritize_verb": "p", "weight": weight} for weight in (1, 5, 1)))
    scores = await extenders.prioritize(make_pod(), NAMES)
    assert scores == {"n1": 100, "n2": 70 + 150, "unknown": 50}
    assert site.most_open == 3


async def test_only_pods_with_a_managed_resource_concern_it(site: ScriptedSite, make: Make) -> None:
    """Requested or limited, by an init container, too."""
    site.answer = lambda request: {"NodeNames": []}
    managed = (ExtenderManagedResource(name="example.com/gpu"),)
    extenders = make({"filter_verb": "filter", "managed_resources": managed})
    assert not extenders.filters(make_pod())
    assert (await extenders.filter(make_pod(), NAMES)).names == NAMES
    assert not site.requests
    init = [{"name": "i", "resources": {"limits": {"example.com/gpu": "1"}}}]
    concerned = read_pod(pod("p", initContainers=init))
    assert extenders.filters(concerned)
    assert not (await extenders.filter(concerned, NAMES)).names


async def test_one_extender_binds(site: ScriptedSite, make: Make) -> None:
    """In place of plugins; they take over where it failed and may."""
    site.answer = lambda request: {"Error": ""}
    wanted = read_pod(pod("web"))
    assert await make({"bind_verb": "bind"}).bind(wanted, "n1")
    assert json.loads(await site.requests[0].read()) == {
        "PodName": "web", "PodNamespace": "default", "PodUID": "uid-default-web", "Node": "n1",
    }  # fmt: skip
    assert not await make({"filter_verb": "filter"}).bind(wanted, "n1")
    site.answer = lambda request: {"Error": "taken"}
    with pytest.raises(ExtenderFailed, match="taken"):
        await make({"bind_verb": "bind"}).bind(wanted, "n1")
    assert not await make({"bind_verb": "bind", "ignorable": True}).bind(wanted, "n1")


async def test_candidates_of_a_preemption_are_edited(site: ScriptedSite, make: Make) -> None:
    """Fewer nodes, or fewer victims; not others."""
    victims = {
        name: (tuple(read_pod(pod(f"{name}-{at}", name)) for at in range(2)), at)
        for at, name in enumerate(("n2", "n1"))
    }
    meta = {"n1": {"Pods": [{"UID": "uid-default-n1-1"}], "NumPDBViolations": 0}}
    site.answer = lambda request: {"NodeNameToMetaVictims": meta}
    for cached in (True, False):
        extenders = make({"preempt_verb": "preempt", "node_cache_capable": cached})
        found = await extenders.preempt(make_pod(), victims)
        assert found == {"n1": (victims["n1"][0][1:], 0)}
    sent = [json.loads(await one.read()) for one in site.requests]
    assert sent[0]["NodeNameToMetaVictims"]["n1"]["NumPDBViolations"] == 1
    assert sent[1]["NodeNameToVictims"]["n2"]["Pods"][0]["metadata"]["name"] == "n2-0"
    for wrong in (
        {"n9": {"Pods": []}},
        {"n1": {"Pods": [{"UID": "uid-default-n2-0"}]}},
        {"n1": {"Pods": []}},
        None,
    ):
        site.answer = lambda request, wrong=wrong: {"NodeNameToMetaVictims": wrong}
        with pytest.raises(KoordError):
            await make({"preempt_verb": "preempt"}).preempt(make_pod(), victims)
    site.answer = lambda request: {"NodeNameToMetaVictims": {"n1": {"Pods": []}}}
    ignorable = make({"preempt_verb": "preempt", "ignorable": True})
    assert await ignorable.preempt(make_pod(), victims) == {}


@pytest.mark.parametrize(
    ("given", "verify"),
    [
        ({}, True),
        ({"enable_https": True}, False),
        ({"enable_https": True, "tls_config": ExtenderTLSConfig(ca_file="/ca")}, True),
        ({"tls_config": ExtenderTLSConfig(insecure=True)}, False),
        ({"tls_config": ExtenderTLSConfig(server_name="x", ca_data="eHl6")}, True),
    ],
)
def test_certificates_are_verified_unless_told_not_to(given: dict[str, Any], verify: bool) -> None:
    """enableHTTPS without a CA means that, as in Kubernetes; data win over files."""
    found = api_config(Extender(url_prefix="https://x.example/a/", **given))
    assert found.verify is verify
    assert found.server == "https://x.example/a"
    if found.tls_server_name:
        assert found.ca == b"xyz"
