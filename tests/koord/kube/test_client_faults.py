"""Whatever the server does, a request ends, says what went wrong, and costs little."""

import asyncio
import json
import socket
import tracemalloc

import pytest
from aiohttp import web

from koord.kube import errors
from koord.kube.client import ApiClient
from koord.kube.transport import Limits
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.faults import answer, begin, drop, endless, hang, refuse

PATH = "/api/v1/nodes/worker-1"
NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "worker-1"}}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (413, "RequestEntityTooLarge", errors.RequestTooLarge),
        (422, "Invalid", errors.PatchRejected),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
    ],
)
async def test_each_refusal_is_an_error_of_its_own(
    server: ApiServer, client: ApiClient, code: int, reason: str, kind: type[errors.ApiError]
) -> None:
    """The caller can distinguish refusals, and reads why the server refused."""
    server.script(refuse(code, reason, details={"name": "worker-1"}))

    with pytest.raises(kind, match=f"GET {PATH}: refused with {code} {reason}") as caught:
        await client.get(PATH)

    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert caught.value.details == {"name": "worker-1"}
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body", [b"", b"<html>502 Bad Gateway</html>", b'{"kind": "Sta', b"[1]", b'"no"', b"\xff\xfe"]
)
async def test_a_refusal_without_a_status_keeps_its_code(
    server: ApiServer, client: ApiClient, body: bytes
) -> None:
    """A load balancer in between may say what it likes."""
    server.script(answer(body, 502))

    with pytest.raises(errors.ServerError) as caught:
        await client.get(PATH)

    assert caught.value.status == 502


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b'{"kind": "Node"', b"[]", b"null", b'{"a": NaN}', b'{"a": "\\ud800"}',
     b"\xff\xfe{}", b'{"a":' * 100_000],
)  # fmt: skip
async def test_broken_json_is_no_answer(server: ApiServer, client: ApiClient, body: bytes) -> None:
    """What is not an object is refused whole."""
    server.script(answer(body))

    with pytest.raises(errors.BadResponse, match=f"GET {PATH}: wanted a JSON object"):
        await client.get(PATH)


async def test_a_redirect_is_not_followed(server: ApiServer, client: ApiClient) -> None:
    """It would carry the token to another server."""
    server.script(answer(b"", 307, {"Location": "http://127.0.0.1:1/"}))

    with pytest.raises(errors.BadResponse, match="status 307"):
        await client.get(PATH)


async def test_compressed_answers_are_refused(server: ApiServer, client: ApiClient) -> None:
    """We ask for plain bytes, so that a small answer cannot unfold into a large one."""
    server.script(answer(b"\x1f\x8b", headers={"Content-Encoding": "gzip"}))

    with pytest.raises(errors.BadResponse, match="gzip"):
        await client.get(PATH)

    assert server.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("fault", [drop, begin(b'{"kind":', then_cut=True)])
async def test_a_cut_connection_is_an_error(
    server: ApiServer, client: ApiClient, fault: object
) -> None:
    """Half a response is none; a GET may be repeated once by the HTTP library, not more."""
    server.script(fault, fault)  # type: ignore[arg-type]

    with pytest.raises(errors.Unreachable, match=f"GET {PATH}"):
        await client.get(PATH)


async def test_no_server_there(clock, make_client) -> None:
    """A refused connection names the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(errors.Unreachable, match=f"127.0.0.1:{port}"):
        await make_client(server=f"http://127.0.0.1:{port}").get(PATH)


@pytest.mark.parametrize("declared", [True, False])
async def test_an_answer_of_100_mb_costs_little(
    server: ApiServer, client: ApiClient, declared: bool
) -> None:
    """Reading stops at the limit, and at once when the size is declared."""
    sent = 0

    async def huge(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(
            headers={"Content-Length": str(100 << 20)} if declared else {}
        )
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" " * (1 << 20))
            sent += 1
        return response

    server.script(huge)
    tracemalloc.start()
    try:
        with pytest.raises(errors.BadResponse, match="at most 16777216 bytes"):
            await client.get(PATH)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 48 << 20  # both ends of the connection are in this process
    assert sent < 50


async def test_an_endless_refusal_keeps_its_code(server: ApiServer, client: ApiClient) -> None:
    """The reason is read to a limit."""

    async def endless_refusal(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 4096)

    server.script(endless_refusal)

    with pytest.raises(errors.Forbidden):
        await client.get(PATH)


async def test_an_endless_body_ends_at_the_limit(server: ApiServer, make_client) -> None:
    """The limit counts the bytes received, not what was announced."""
    server.script(endless(b'{"a":1,' * 100))

    with pytest.raises(errors.BadResponse, match="at most 100000 bytes"):
        await make_client(Limits(response_bytes=100_000, qps=0)).get(PATH)


@pytest.mark.parametrize(
    ("fault", "phase", "seconds"),
    [
        (hang, "the head of the answer", 30),
        (begin(b'{"kind":', then_hang=True), "the whole answer", 60),
    ],
)
async def test_silence_ends_the_request(
    server: ApiServer, client: ApiClient, clock, pass_time, fault, phase: str, seconds: int
) -> None:
    """Each phase has its own deadline, and the error names it."""
    server.script(fault)
    asked = asyncio.ensure_future(client.get(PATH))
    begun = clock.monotonic()

    await pass_time(asked.done)

    with pytest.raises(errors.TimedOut, match=f"wanted {phase} within {seconds} s"):
        await asked
    assert seconds <= clock.monotonic() - begun <= seconds + 40  # and some for the network


async def test_a_server_that_does_not_shake_hands(clock, make_client, pass_time) -> None:
    """A port that accepts and says nothing costs the time for a connection, no more."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = make_client(server=f"https://127.0.0.1:{mute.getsockname()[1]}")
        asked = asyncio.ensure_future(client.get(PATH))

        await pass_time(asked.done)

        with pytest.raises(errors.TimedOut, match="wanted a connection within 10 s"):
            await asked


async def test_a_server_that_does_not_read(make_client, pass_time) -> None:
    """What it does not take counts as waiting for its response."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client = make_client(server=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        asked = asyncio.ensure_future(client.merge_patch(PATH, {"spec": {"a": "x" * 1_000_000}}))

        await pass_time(asked.done)

        with pytest.raises(errors.TimedOut, match="wanted the head of the answer within 30 s"):
            await asked


@pytest.mark.parametrize("cut", [True, False])
async def test_a_refusal_without_its_reason_keeps_its_code(
    server: ApiServer, client: ApiClient, pass_time, cut: bool
) -> None:
    """The head of the response said enough, even if the rest never comes."""

    async def half_refusal(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=403)
        await response.prepare(request)
        await response.write(b'{"kind": "Sta')
        if cut:
            request.transport.abort()
        await asyncio.Event().wait()
        return response

    server.script(half_refusal)
    asked = asyncio.ensure_future(client.get(PATH))
    await pass_time(asked.done)

    with pytest.raises(errors.Forbidden):
        await asked


async def test_a_large_answer_does_not_block(server: ApiServer, client: ApiClient) -> None:
    """It is decoded in a thread, and comes out the same."""
    node = NODE | {"metadata": {"name": "worker-1", "annotations": {"a": "x" * 500_000}}}
    server.script(answer(json.dumps(node).encode()))

    assert await client.get(PATH) == node


async def test_the_client_works_after_every_fault(server: ApiServer, client: ApiClient) -> None:
    """No fault leaves a connection behind that the next request trips over."""
    server.objects.create("/api/v1/nodes", NODE)
    for fault in (
        drop,
        begin(b"{", then_cut=True),
        endless(b" " * 65536),
        refuse(500),
        answer(b""),
    ):
        server.script(fault, *([fault] if fault is drop else []), method="PATCH")
        with pytest.raises(errors.KubeError):
            await client.merge_patch(PATH, {})

    assert (await client.get(PATH))["metadata"]["name"] == "worker-1"
