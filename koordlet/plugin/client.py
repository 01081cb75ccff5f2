"""The API server as a plugin sees it: the same interface with and without Kubernetes."""

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from koord.util.errors import Unavailable

Object = dict[str, Any]
"""A Kubernetes object as plain JSON."""


class Client(Protocol):
    """Requests to the Kubernetes API server. Paths are absolute, for example /api/v1/nodes/n1.

    Every call raises Unavailable when the agent runs without Kubernetes.
    """

    @property
    def available(self) -> bool:
        """Whether the agent runs with an API server at all; it may be unreachable now."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return an object or a list."""

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection and return it as stored."""

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        """Patch an object and return it as stored."""

    async def delete(self, path: str) -> None:
        """Delete an object."""


class UnavailableClient:
    """The client of an agent that has no API server."""

    available = False

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        _refuse("get", path)

    async def create(self, path: str, body: Object) -> Object:
        _refuse("create", path)

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        _refuse("patch", path)

    async def delete(self, path: str) -> None:
        _refuse("delete", path)


def _refuse(verb: str, path: str) -> NoReturn:
    raise Unavailable(
        f"{verb} {path}: wanted the Kubernetes API server, found standalone mode; "
        "run the agent in a cluster or with --kubeconfig, or do without"
    )
