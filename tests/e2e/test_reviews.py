"""A stranger asks the real process: Kubernetes is asked whose the token is, and what it allows."""

import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from koord.kube.client import ApiClient, Resource
from koordlet.plugin.testing import FakeHost
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import SERVICE_ACCOUNTS, Accounts
from tests.support.real_apiserver.cluster_objects import SHOP, ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

ROLE = Resource("rbac.authorization.k8s.io/v1", "clusterroles")
BINDING = Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings")
_GROUP = "rbac.authorization.k8s.io"


async def add_reader(objects: ClusterObjects, account: str, path: str) -> None:
    """Grant a service account of the shop to read a path."""
    rule = {"nonResourceURLs": [path], "verbs": ["get"]}
    name = f"{account}-reads"
    await objects.have(ROLE, name, {"rules": [rule]})
    reference = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SHOP}
    await objects.have(BINDING, name, {"roleRef": reference, "subjects": [subject]})


async def token_of(client: ApiClient, objects: ClusterObjects, account: str) -> str:
    """Make a service account of the shop, and a token for it."""
    await objects.have(SERVICE_ACCOUNTS, account, {}, namespace=SHOP)
    path = SERVICE_ACCOUNTS.object(account, namespace=SHOP, subresource="token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = (await client.post(path, body))["status"]["token"]
    return token


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
    tmp_path: Path, recorder: Recorder, client: ApiClient, objects: ClusterObjects,
    accounts: Accounts, address: str, node_name: str, eventually: Any,
) -> None:  # fmt: skip
    """For more than metrics and health."""
    host = FakeHost(tmp_path / "host")
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    token = await accounts.agent(node_name, "manager-duties", "pods-from-api-server")
    anna, berta = [await token_of(client, objects, name) for name in ("anna", "berta")]
    await add_reader(objects, "anna", "/nodemetric")
    async with running(tmp_path, host, recorder.url, node_name, "--addr=0.0.0.0:0", token=token):
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
        assert await ask("/nodemetric", Authorization="Bearer invented") == 401
        assert await ask("/nodemetric", Authorization=f"Bearer {berta}") == 403
        assert await ask("/nodemetric", Authorization=f"Bearer {anna}") in (200, 404, 503)
        assert await ask("/events", Authorization=f"Bearer {anna}") == 403
