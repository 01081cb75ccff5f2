"""The API server as plugins get it (koordlet.plugin.Client)."""

from collections.abc import Mapping
from urllib.parse import unquote

from koord.kube.answers import Object
from koord.kube.client import ApiClient
from koord.kube.errors import KubeError


class NotAllowed(KubeError):
    """A plugin wants to do by hand what dry run, budgets and explanations are there for."""


class PluginClient:
    """Passes requests on, except those that end pods: these go through ExtensionPlugin.evict."""

    available = True

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return an object or a list."""
        return await self._client.get(path, query)

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection and return it as stored."""
        if _is_about_pods(path, "eviction"):
            raise _not_allowed("create", path)
        return await self._client.create(path, body)

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        """Patch an object and return it as stored."""
        return await self._client.patch(path, body, content_type)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        if _is_about_pods(path):
            raise _not_allowed("delete", path)
        await self._client.delete(path)


def _is_about_pods(path: str, subresource: str = "") -> bool:
    """Whether a request for this path may reach pods, or such a part of one. A server unquotes."""
    parts = unquote(path).partition("?")[0].split("/")
    return "pods" in parts and (not subresource or subresource in parts)


def _not_allowed(verb: str, path: str) -> NotAllowed:
    return NotAllowed(f"{verb} {path}: wanted an eviction, found one by hand; use self.evict()")
