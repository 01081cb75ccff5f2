"""A kubelet for tests: HTTPS with a certificate, a token check, faults on demand, a record.

What ApiServer does with requests (script, requests, stop and start on one port) it does as well.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from koord.api.node import AddressType, Node, NodeAddress
from koord.kube.credentials import ApiConfig
from tests.support.kube.apiserver import ApiServer, Recorded
from tests.support.kube.certificates import Authority
from tests.support.kube.object_store import Object

TOKEN = "secret"


@dataclass
class Kubelet(ApiServer):
    """One kubelet, which answers with what the test has put in here."""

    pods: list[Object] = field(default_factory=list)
    config: Any = field(default_factory=lambda: {"cpuManagerPolicy": "none"})

    @property
    def status(self) -> Object:
        """The part of the Node's status that says where it is."""
        return {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }

    @property
    def node(self) -> Node:
        """The Node as our daemon knows it."""
        address = NodeAddress(AddressType.INTERNAL_IP, "127.0.0.1")
        return Node("n1", addresses=(address,), kubelet_port=self.port)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized")
        if request.path.rstrip("/") == "/pods":
            head = {"kind": "PodList", "apiVersion": "v1", "metadata": {}}
            return web.json_response({**head, "items": self.pods})
        if request.path == "/configz":
            return web.json_response({"kubeletconfig": self.config})
        return web.Response(status=404, text="404 page not found")


def make_kubelet(authority: Authority, **certificate: Any) -> Kubelet:
    """A kubelet with a certificate of that CA, not started. The keywords are those of issue."""
    pair = authority.issue("kubelet", **certificate)
    return Kubelet(tls=pair.server_context(), token=TOKEN)


def api_config(ca: Path | None, **more: Any) -> ApiConfig:
    """How our daemon knows the API server, and with it a CA and its own token."""
    known = {"server": "https://10.96.0.1", "source": "the test", "ca": ca, "token": TOKEN}
    return ApiConfig(**{**known, **more})


def rbac(entry: Recorded) -> tuple[str, str]:
    """The verb and resource that the kubelet has a request authorized for, by its path."""
    verb = {"GET": "get", "POST": "create", "PUT": "update"}.get(entry.method, entry.method.lower())
    subresource = entry.path.strip("/").partition("/")[0]
    return verb, f"nodes/{subresource if subresource in ('pods', 'configz') else 'proxy'}"
