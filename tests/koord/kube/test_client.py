"""The verbs of the client, as a server sees them."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from koord.controlplane.transport import PooledTransport
from koord.kube import errors
from koord.kube.client import (
    NODE_METRICS,
    NODES,
    PODS,
    ApiClient,
    KubeMetrics,
    Resource,
    field_selector,
)
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Limits, Transport
from koordlet.daemon.cluster import NotAllowed, PluginClient
from koordlet.plugin.interfaces import Client
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, hang, refuse


def pod(name: str, node: str = "worker-1", namespace: str = "default") -> dict:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node},
    }


def node(name: str = "worker-1") -> dict:
    return {"metadata": {"name": name}}


async def test_create_get_patch_delete(server: ApiServer, client: ApiClient) -> None:
    """An object's life."""
    created = await client.create(NODES.collection(), node())
    path = NODES.object("worker-1")
    uid = created["metadata"]["uid"]

    await client.merge_patch(path, {"metadata": {"labels": {"a": "b"}}})
    await client.json_patch(
        path,
        [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/metadata/labels/c", "value": "d"},
        ],
    )
    found = await client.get(path)
    await client.delete(path, uid=uid)

    assert found["metadata"]["labels"] == {"a": "b", "c": "d"}
    with pytest.raises(errors.NotFound):
        await client.get(path)
    with pytest.raises(errors.NotFound):
        await client.delete(path)


async def test_what_is_submitted_is_there_and_what_comes_back_is_not_read(
    server: ApiServer, client: ApiClient
) -> None:
    await client.submit(NODES.collection(), node())
    assert (await client.get(NODES.object("worker-1")))["metadata"]["name"] == "worker-1"
    with pytest.raises(errors.AlreadyExists):
        await client.submit(NODES.collection(), node())
    server.script(answer(b' {"kind": not read} \n', 201), method="POST")
    await client.submit(NODES.collection(), node())


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"kind": "No', b"[]"])
async def test_what_is_submitted_to_no_api_server_is_an_error(
    server: ApiServer, client: ApiClient, body: bytes
) -> None:
    """Some proxy on the way answers, with success, or a response that was cut."""
    server.script(answer(body), method="POST")
    with pytest.raises(errors.BadResponse):
        await client.submit(NODES.collection(), node())


async def test_replacing_an_outdated_object_is_a_conflict(
    server: ApiServer, client: ApiClient
) -> None:
    """Two read the same version, and one is faster; whatever the second one left out would go."""
    path = NODES.object("worker-1")
    mine = await client.create(NODES.collection(), node())
    theirs = await client.replace(path, mine | {"spec": {"unschedulable": True}})

    with pytest.raises(errors.Conflict):
        await client.replace(path, mine)
    assert await client.get(path) == theirs
    assert server.requests[-2].verb == "update"
    with pytest.raises(errors.NotFound):
        await client.replace(NODES.object("worker-2"), node("worker-2"))


async def test_the_server_sees_the_user_agent(server: ApiServer, client: ApiClient) -> None:
    """Requests carry our name, want JSON, and say what they carry."""
    with pytest.raises(errors.NotFound):
        await client.merge_patch(NODES.object("worker-1"), {"metadata": {}})

    headers = server.requests[0].headers
    assert headers["User-Agent"] == "koordlet"
    assert headers["Accept"] == "application/json"
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert "Authorization" not in headers


async def test_a_patch_with_a_test_that_fails_changes_nothing(
    server: ApiServer, client: ApiClient
) -> None:
    """The object was deleted and made anew in the meantime."""
    await client.create(NODES.collection(), node())
    stale = {"op": "test", "path": "/metadata/uid", "value": "of an older one"}

    with pytest.raises(errors.PatchRejected):
        await client.json_patch(
            NODES.object("worker-1"), [stale, {"op": "add", "path": "/spec", "value": {}}]
        )

    assert "spec" not in await client.get(NODES.object("worker-1"))


async def test_a_schema_violation_is_no_refused_patch(server: ApiServer, client: ApiClient) -> None:
    """Both are 422; only the first has causes, and to repeat it is useless."""
    server.script(refuse(422, "Invalid", details={"causes": [{"field": "status.x"}]}))

    with pytest.raises(errors.Invalid) as caught:
        await client.replace_status(NODE_METRICS.object("w", subresource="status"), "u", {})

    assert not isinstance(caught.value, errors.PatchRejected)


async def test_deleting_another_object_of_the_same_name_is_a_conflict(client: ApiClient) -> None:
    """A uid pins the object that is meant."""
    await client.create(NODES.collection(), node())

    with pytest.raises(errors.Conflict):
        await client.delete(NODES.object("worker-1"), uid="another")


@pytest.mark.parametrize(("pods", "requests"), [(0, 1), (3, 1), (7, 3)])
async def test_lists_come_in_pages(
    server: ApiServer, client: ApiClient, pods: int, requests: int
) -> None:
    """A list is complete however many pages it has; only the first may ask for a version."""
    for index in range(pods):
        server.objects.create("/api/v1/pods", pod(f"p{index}"))
        server.objects.create("/api/v1/pods", pod(f"q{index}", node="worker-2"))
    query = {
        "fieldSelector": field_selector({"spec.nodeName": "worker-1"}),
        "resourceVersion": "0",
        "resourceVersionMatch": "NotOlderThan",
    }

    found = await client.list(PODS.collection(), query, page_size=3)

    assert [item["metadata"]["name"] for item in found.items] == [f"p{i}" for i in range(pods)]
    assert found.resource_version == str(server.objects.version)
    assert len(server.requests) == requests
    assert "resourceVersion" in server.requests[0].query
    assert all("resourceVersion" not in entry.query for entry in server.requests[1:])
    assert all("fieldSelector" in entry.query for entry in server.requests)


async def test_a_list_that_takes_too_long_is_gone(server: ApiServer, client: ApiClient) -> None:
    """The continue token has expired: the caller begins again."""
    for index in range(4):
        server.objects.create("/api/v1/pods", pod(f"p{index}"))
    pages = client.pages(PODS.collection(), size=2)
    await anext(pages)
    server.objects.compact()

    with pytest.raises(errors.Gone):
        await anext(pages)


@pytest.mark.parametrize(
    "body", [b'{"metadata": {}, "items": {}}', b'{"items": []}', b'{"metadata": {}, "items": [1]}']
)
async def test_what_is_no_list_is_refused(
    server: ApiServer, client: ApiClient, body: bytes
) -> None:
    """A list whose shape is wrong must not look like an empty one."""
    server.script(answer(body))

    with pytest.raises(errors.BadResponse, match="a list of objects"):
        await client.list(PODS.collection())


async def test_items_know_their_kind(server: ApiServer, client: ApiClient) -> None:
    """On the wire only the list does."""
    server.script(
        answer(b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{}}]}')
    )

    found = await client.list(PODS.collection())

    assert found.items == [{"kind": "Pod", "apiVersion": "v1", "metadata": {}}]


@pytest.mark.parametrize("code", [429, 503])
async def test_retry_after_is_obeyed(
    server: ApiServer, client: ApiClient, clock, pass_time, code: int
) -> None:
    """A busy server names the pause, and gets it."""
    server.objects.create("/api/v1/nodes", node())
    server.script(refuse(code, headers={"Retry-After": "7"}))
    begun = clock.monotonic()

    asked = asyncio.ensure_future(client.get(NODES.object("worker-1")))
    await pass_time(asked.done, step=0.5)

    assert (await asked)["metadata"]["name"] == "worker-1"
    assert 7 <= clock.monotonic() - begun <= 8


async def test_retry_after_may_be_a_date(
    server: ApiServer, client: ApiClient, clock, pass_time
) -> None:
    """It is read by the server's clock; ours may be an hour off."""
    server.objects.create("/api/v1/nodes", node())
    dates = {
        "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
        "Retry-After": "Wed, 21 Oct 2015 07:28:05 GMT",
    }
    server.script(refuse(503, headers=dates))
    begun = clock.monotonic()

    asked = asyncio.ensure_future(client.get(NODES.object("worker-1")))
    await pass_time(asked.done, step=0.5)

    await asked
    assert 5 <= clock.monotonic() - begun <= 6


@pytest.mark.parametrize(
    ("headers", "details", "wanted"),
    [
        ({}, None, None),
        ({"Retry-After": "soon"}, None, None),
        ({"Retry-After": "-1"}, None, None),
        ({"Retry-After": "600"}, None, 600.0),
        ({"Retry-After": "9" * 30}, None, 3600.0),
        ({}, {"retryAfterSeconds": 40}, 40.0),
        ({}, {"retryAfterSeconds": "40"}, None),
    ],
)
async def test_a_long_or_unclear_pause_is_left_to_the_caller(
    server: ApiServer, client: ApiClient, headers, details, wanted
) -> None:
    """The error says how long the server wants to be left alone, within an hour."""
    server.script(refuse(429, headers=headers, details=details))

    with pytest.raises(errors.TooManyRequests) as caught:
        await client.get(NODES.object("worker-1"))

    assert caught.value.retry_after == wanted
    assert len(server.requests) == 1


async def test_a_server_that_stays_busy_is_given_up(
    server: ApiServer, client: ApiClient, pass_time
) -> None:
    """Four attempts, then it is the caller's turn."""
    server.script(*[refuse(429, headers={"Retry-After": "1"})] * 10)

    asked = asyncio.ensure_future(client.get(NODES.object("worker-1")))
    await pass_time(asked.done)

    with pytest.raises(errors.TooManyRequests):
        await asked
    assert len(server.requests) == 4


async def test_an_eviction_is_not_repeated(server: ApiServer, client: ApiClient) -> None:
    """Its 429 is the response of a PodDisruptionBudget, not a busy server."""
    server.script(refuse(429, "TooManyRequests", headers={"Retry-After": "10"}))

    with pytest.raises(errors.TooManyRequests) as caught:
        await client.post(PODS.object("p", namespace="default", subresource="eviction"), {})

    assert caught.value.retry_after == 10
    assert len(server.requests) == 1


async def test_requests_are_paced(server: ApiServer, make_client, clock, pass_time) -> None:
    """A burst passes at once; what is beyond waits its turn."""
    server.objects.create("/api/v1/nodes", node())
    client = make_client(Limits(qps=2, burst=3))
    asked = [asyncio.ensure_future(client.get(NODES.object("worker-1"))) for _ in range(7)]

    await clock.until(lambda: len(server.requests) == 3)
    begun = clock.monotonic()
    await pass_time(lambda: all(task.done() for task in asked), step=0.25)

    assert 2.0 <= clock.monotonic() - begun <= 3.0


async def test_connections_are_reused(server: ApiServer, client: ApiClient) -> None:
    """A handshake per request would cost more than the request."""
    peers = set()

    async def note(request):
        peers.add(request.transport.get_extra_info("peername"))
        return await answer(b"{}")(request)

    server.script(*[note] * 5)
    for _ in range(5):
        await client.get(NODES.object("worker-1"))

    assert len(peers) == 1


async def test_a_proxy_is_asked_in_place_of_the_server(server: ApiServer, make_client) -> None:
    """proxy-url of a kubeconfig; the server itself need not be reachable."""
    server.objects.create("/api/v1/nodes", node())
    client = make_client(server="http://kubernetes.invalid:6443", proxy_url=server.url)

    await client.get(NODES.object("worker-1"))

    assert server.requests[0].headers["Host"] == "kubernetes.invalid:6443"


@pytest.mark.parametrize("transport_class", [Transport, PooledTransport])
async def test_traffic_is_counted(server: ApiServer, clock, pass_time, transport_class) -> None:
    """By verb and code, refusals and silence included."""
    registry = CollectorRegistry()
    config = ApiConfig(server=server.url, source="the test")
    transport = transport_class(config, clock, observe=KubeMetrics(registry, "koordlet").observe)
    client = ApiClient(transport, clock)
    await client.create(NODES.collection(), node())
    with pytest.raises(errors.NotFound):
        await client.get(NODES.object("worker-2"))
    server.script(hang)
    asked = asyncio.ensure_future(client.get(NODES.object("worker-1")))
    await pass_time(asked.done)
    with pytest.raises(errors.TimedOut):
        await asked
    await client.close()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"koordlet_kube_{name}", labels)

    assert value("requests_total", verb="POST", code="201") == 1
    assert value("requests_total", verb="GET", code="404") == 1
    assert value("requests_total", verb="GET", code="0") == 1
    assert value("request_seconds_count", verb="GET") == 1
    assert value("sent_bytes_total") == len('{"metadata":{"name":"worker-1"}}')
    assert (value("received_bytes_total") or 0) > 100


async def test_a_plugin_gets_the_interface_it_knows(server: ApiServer, client: ApiClient) -> None:
    """The same calls as in standalone mode, where each raises Unavailable."""
    plugin_client: Client = PluginClient(client)
    await plugin_client.create(NODES.collection(), node())
    await plugin_client.patch(
        NODES.object("worker-1"), {"spec": {}}, "application/merge-patch+json"
    )

    assert (await plugin_client.get(NODES.object("worker-1")))["spec"] == {}
    await plugin_client.delete(NODES.object("worker-1"))
    with pytest.raises(NotAllowed, match=r"self\.evict"):
        await plugin_client.create("/api/v1/namespaces/a/pods/p/eviction", {})
    asked = len(server.requests)
    for path in (
        PODS.object("p", namespace="a"),
        PODS.collection("a"),
        f"{PODS.collection('a')}?labelSelector=x",
        "/api/v1/namespaces/a/%70ods/p",
    ):
        with pytest.raises(NotAllowed):
            await plugin_client.delete(path)
    with pytest.raises(NotAllowed):
        await plugin_client.create("/api/v1/namespaces/a/pods/p/evictio%6e?x=y", {})
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (PODS.collection(), "/api/v1/pods"),
        (PODS.collection("kube-system"), "/api/v1/namespaces/kube-system/pods"),
        (PODS.object("a", namespace="b", subresource="eviction"),
         "/api/v1/namespaces/b/pods/a/eviction"),
        (NODE_METRICS.object("w", subresource="status"),
         "/apis/slo.koordinator.sh/v1alpha1/nodemetrics/w/status"),
        (Resource("v1", "nodes").object("../x?y"), "/api/v1/nodes/..%2Fx%3Fy"),
    ],
)  # fmt: skip
def test_paths(path: str, wanted: str) -> None:
    """Names cannot leave their place in a path."""
    assert path == wanted


def test_field_selectors_are_escaped() -> None:
    """A value cannot add a condition."""
    assert field_selector({"metadata.name": "a,b=c\\d"}) == "metadata.name=a\\,b\\=c\\\\d"
