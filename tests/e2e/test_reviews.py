"""A stranger asks the real process: Kubernetes is asked whose the token is, and what it allows."""

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from front import Front
from realdaemon import running

from koord.kube.client import ACCESS_REVIEWS, NODES, TOKEN_REVIEWS
from koord.kube.credentials import ApiConfig
from koordlet.plugin.testing import FakeHost
from tests.support.kube.faults import answer


@pytest.fixture
async def front(api_config: ApiConfig, node_name: str) -> AsyncIterator[Front]:
    """A cluster that knows Anna."""
    front = Front(api_config)
    front.objects.create(NODES.collection(), {"metadata": {"name": node_name}, "status": {}})
    for resource, status in (
        (TOKEN_REVIEWS, {"authenticated": True, "user": {"username": "anna"}}),
        (ACCESS_REVIEWS, {"allowed": True}),
    ):
        body = json.dumps({"status": status}).encode()
        front.script(answer(body, 201), method="POST", path=resource.collection())
    await front.start()
    yield front
    await front.stop()


@pytest.fixture
def address() -> str:
    """An address of this machine that is not loopback."""
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family == socket.AF_INET and not each.address.startswith("127."):
                return each.address
    pytest.skip("needs an address that is not loopback")


def port(log: Path) -> int:
    """Where the daemon listens; 0 while it does not."""
    for line in log.read_text().splitlines() if log.exists() else ():
        event = json.loads(line)
        if event["event"] == "daemon.started":
            return int(event["address"].rpartition(":")[2])
    return 0


async def test_a_stranger_needs_a_token_with_a_grant(
    tmp_path: Path, front: Front, address: str, node_name: str, eventually: Any
) -> None:
    """For more than metrics and health."""
    host = FakeHost(tmp_path / "host")
    async with running(tmp_path, host, front.url, node_name, "--addr=0.0.0.0:0"):
        log = tmp_path / "log"
        await eventually(lambda: port(log))
        url = f"http://{address}:{port(log)}"

        async def ask(path: str, **headers: str) -> int:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(url + path) as found,
            ):
                return found.status

        assert await ask("/metrics") == 200
        assert await ask("/nodemetric") == 401
        assert await ask("/nodemetric", Authorization="Bearer annas") in (200, 404, 503)

    asked: dict[str, Any] = {
        entry.path: entry.json["spec"] for entry in front.requests if entry.path.endswith("reviews")
    }
    assert asked[TOKEN_REVIEWS.collection()]["token"] == "annas"
    assert asked[ACCESS_REVIEWS.collection()]["nonResourceAttributes"]["path"] == "/nodemetric"
