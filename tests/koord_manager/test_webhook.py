"""The webhook: reviews over TLS, with bounds, and pods that are made whatever goes wrong."""

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from koord.component.http.responses import HttpError
from koord.component.http.sockets import Address
from koord.util.clock import SystemClock
from koord.util.stop import Stop
from koord_manager.webhook import MAX_BODY, PodWebhook, json_patch, parse_review
from tests.support.kube.certificates import Authority

POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}


def review(pod: Any = POD, **request: Any) -> dict[str, Any]:
    found = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "shop",
        "object": pod,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": found}


def labelled(pod: Any, namespace: str) -> Any:
    return {**pod, "metadata": {**pod["metadata"], "labels": {"by/ns": namespace}}}


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Post a body to a webhook that does this to pods; return status and text."""
    authority = Authority(tmp_path)
    pair = authority.issue("webhook")
    clock, registry = SystemClock(), CollectorRegistry()
    stop = Stop(clock)
    does: dict[str, Any] = {"mutate": labelled}
    server = PodWebhook(
        lambda pod, namespace: does["mutate"](pod, namespace),
        Address("127.0.0.1", 0),
        pair.server_context(),
        clock,
        registry,
    )
    task = asyncio.create_task(server.run(stop))
    while not server.port:  # noqa: ASYNC110 - it has no event to await
        await asyncio.sleep(0.01)
    trusting = ssl.create_default_context(cafile=str(authority.certificate))

    async def ask(body: Any, mutate: Any = labelled, method: str = "POST") -> tuple[int, Any]:
        does["mutate"] = mutate
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://127.0.0.1:{server.port}/mutate-pod?timeout=3s"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=io.BytesIO(data), ssl=trusting) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if response.status == 200 else text

    yield ask
    stop.set()
    await task


async def test_a_new_pod_is_patched(ask: Any) -> None:
    status, found = await ask(review())

    assert status == 200
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    answer = found["response"]
    assert (answer["uid"], answer["allowed"], answer["patchType"]) == ("u-1", True, "JSONPatch")
    assert json.loads(base64.b64decode(answer["patch"])) == [
        {"op": "add", "path": "/metadata/labels", "value": {"by/ns": "shop"}}
    ]


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"subResource": "status"},
        {"kind": {"group": "", "version": "v1", "kind": "Node"}},
        {"object": None},
        {"namespace": None},
    ],
)
async def test_what_is_no_new_pod_is_let_through(ask: Any, request_: dict[str, Any]) -> None:
    _, found = await ask(review(**request_))

    assert found["response"] == {"uid": "u-1", "allowed": True}


async def test_an_unchanged_pod_has_no_patch(ask: Any) -> None:
    _, found = await ask(review(), lambda pod, namespace: pod)

    assert found["response"] == {"uid": "u-1", "allowed": True}


async def test_a_pod_that_cannot_be_mutated_is_made_with_a_warning(ask: Any) -> None:
    def fails(pod: Any, namespace: str) -> Any:
        raise KeyError("x" * 1000)

    _, found = await ask(review(), fails)

    assert found["response"]["allowed"]
    assert "patch" not in found["response"]
    [warning] = found["response"]["warnings"]
    assert "left the pod as it is" in warning
    assert len(warning) < 256


def deep(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = {"a": found}
    return {**POD, "spec": found}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[" * 200_000, 400),
        (b"null", 400),
        (b'{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}', 400),
        (b'{"apiVersion":"admission.k8s.io/v1"}', 400),
        (b"\xff\xfe", 400),
        (b"x" * (MAX_BODY + 1), 413),
    ],
)
async def test_what_is_no_review_is_refused(ask: Any, body: bytes, status: int) -> None:
    found, _ = await ask(body)

    assert found == status


async def test_other_methods_and_paths_are_not_served(ask: Any) -> None:
    status, _ = await ask(b"", method="GET")

    assert status == 405


def test_a_pod_is_bounded_in_depth() -> None:
    assert parse_review(json.dumps(review(deep(50))).encode()).pod is not None
    for levels in (70, 500):
        with pytest.raises(HttpError, match="levels"):
            parse_review(json.dumps(review(deep(levels))).encode())


@pytest.mark.parametrize(
    ("old", "new", "operations"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [{"op": "replace", "path": "/a", "value": 2}]),
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a/b~": 1}, {}, [{"op": "remove", "path": "/a~1b~0"}]),
        ({}, {"b": {"c": 1}}, [{"op": "add", "path": "/b", "value": {"c": 1}}]),
        (
            {"l": [{"x": 1}, {"x": 2}]},
            {"l": [{"x": 1}, {"x": 3}]},
            [{"op": "replace", "path": "/l/1/x", "value": 3}],
        ),
        ({"l": [1]}, {"l": [1, 2]}, [{"op": "replace", "path": "/l", "value": [1, 2]}]),
    ],
)
def test_the_patch_is_the_difference(old: Any, new: Any, operations: Any) -> None:
    assert json_patch(old, new) == operations
