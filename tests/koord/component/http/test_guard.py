"""Local clients, and clients that only claim to be local."""

import ipaddress

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from koord.component.http.guard import is_no_name, local_only
from koord.component.http.responses import limits
from koord.util.simulatedclock import SimulatedClock


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9316", "127.0.0.1", "127.0.0.1:9316", "10.1.2.3:80", "[::1]:9316"],
)
def test_localhost_and_addresses_are_no_foreign_names(host):
    """What curl, kubectl port-forward and a script send."""
    assert is_no_name(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:9316", "localhost.evil.example", "127.0.0.1.nip.io", "::1",
     "localhost:", "localhost:9316:1", "[127.0.0.1]", "[::1", "127.1", "localhost@evil", "a b"],
)  # fmt: skip
def test_a_name_may_lead_anywhere(host):
    """Also one that looks like an address, or that is cut in another way by a browser."""
    assert not is_no_name(host)


@given(st.text(max_size=40))
def test_any_host_header_is_judged(host):
    """Nothing raises; whatever passes is an address or localhost."""
    if is_no_name(host) and not host.lower().startswith("localhost"):
        text = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        ipaddress.ip_address(text)


@pytest.fixture
async def client():
    async def guarded(request):
        await local_only(request)
        return web.Response(text="secret")

    app = web.Application(middlewares=[limits(SimulatedClock())])
    app.router.add_get("/secret", guarded)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_a_web_page_on_this_machine_is_not_let_in(client):
    """Its name leads to 127.0.0.1, so its connection is local."""
    answer = await client.get("/secret", headers={"Host": "evil.example:9316"})
    assert answer.status == 403
    assert "localhost or an IP address" in await answer.text()

    assert (await client.get("/secret", headers={"Host": "localhost:9316"})).status == 200
    assert (await client.get("/secret")).status == 200
