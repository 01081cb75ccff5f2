"""Of an object whose status is our own only the spec is fetched, and only when it changes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.kube.client import NODE_METRICS, ApiClient
from koord.kube.reflector import Reflector, Watched
from koord.util.stop import Stop
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import refuse

PATH = NODE_METRICS.collection()
OWN = NODE_METRICS.object("n1")
STATUS = NODE_METRICS.object("n1", subresource="status")


@pytest.fixture
async def reflector(client: ApiClient, clock) -> AsyncIterator[Reflector[Any]]:
    """Follows NodeMetrics by their metadata."""
    watched = Watched(
        name="nodemetric",
        path=PATH,
        read=lambda item: item,
        on_change=lambda _: None,
        spec_only=True,
    )
    reflector = Reflector(client, watched, clock, draw=lambda: 0.0)
    stop = Stop(clock)
    following = asyncio.create_task(reflector.run(stop))
    yield reflector
    stop.set()
    await following


def create(server: ApiServer, interval: int = 60) -> str:
    """Make the object; return its UID."""
    item = {"metadata": {"name": "n1"}, "spec": {"interval": interval}, "status": {"large": 1}}
    uid: str = server.objects.create(PATH, item)["metadata"]["uid"]
    return uid


def version(reflector: Reflector[Any]) -> str:
    found = reflector.objects.get("n1")
    return "" if found is None else found["metadata"]["resourceVersion"]


async def test_a_status_does_not_come_back(
    server: ApiServer, client: ApiClient, reflector: Reflector[Any], pass_time
) -> None:
    """One look at the whole object at first; its metadata goes on."""
    uid = create(server)
    await pass_time(lambda: "n1" in reflector.objects)
    for number in range(3):
        answer = await client.replace_status(STATUS, uid, {"large": number})
        written = answer["metadata"]["resourceVersion"]
        await pass_time(lambda written=written: version(reflector) == written)

    assert answer.keys() == {"kind", "apiVersion", "metadata"}
    assert len(server.asked("get")) == 1
    assert reflector.objects["n1"]["spec"] == {"interval": 60}


async def test_a_new_spec_is_fetched(
    server: ApiServer, client: ApiClient, reflector: Reflector[Any], pass_time
) -> None:
    """Once."""
    create(server)
    await pass_time(lambda: "n1" in reflector.objects)
    await client.merge_patch(OWN, {"spec": {"interval": 30}})
    await pass_time(lambda: reflector.objects["n1"]["spec"] == {"interval": 30})

    assert len(server.asked("get")) == 2


async def test_an_object_made_anew_is_another(
    server: ApiServer, reflector: Reflector[Any], pass_time
) -> None:
    """Though its generation is the same."""
    create(server, 60)
    await pass_time(lambda: "n1" in reflector.objects)
    server.objects.delete(PATH, "n1")
    uid = create(server, 90)
    await pass_time(lambda: reflector.objects.get("n1", {}).get("spec") == {"interval": 90})

    assert reflector.objects["n1"]["metadata"]["uid"] == uid


async def test_what_cannot_be_fetched_is_asked_for_again(
    server: ApiServer, client: ApiClient, reflector: Reflector[Any], pass_time
) -> None:
    """The change is not lost."""
    create(server)
    await pass_time(lambda: "n1" in reflector.objects)
    server.script(refuse(500, "InternalError"), refuse(404, "NotFound"), method="GET", path=OWN)
    await client.merge_patch(OWN, {"spec": {"interval": 30}})
    await client.merge_patch(OWN, {"spec": {"interval": 45}})

    await pass_time(lambda: reflector.objects["n1"]["spec"] == {"interval": 45})


async def test_a_server_may_send_everything(
    server: ApiServer, reflector: Reflector[Any], pass_time, monkeypatch
) -> None:
    """Then nothing has to be fetched."""
    monkeypatch.setattr("tests.support.kube.apiserver._seen", lambda request, item, suffix="": item)
    create(server)
    await pass_time(lambda: "n1" in reflector.objects)

    assert server.asked("get") == []
