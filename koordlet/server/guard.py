"""Who may see more than metrics and health: whoever is on this machine, and nobody else."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from koordlet.server.refusal import Refusal
from koordlet.util.address import is_loopback

Guard = Callable[[web.Request], Awaitable[None]]
"""Returns if the client may see more than metrics and health.

Raises:
    Refusal: it may not.
"""


async def local_only(request: web.Request) -> None:
    """The guard of a daemon that has nobody to ask about tokens."""
    if not is_local(request):
        raise Refusal(
            403,
            f"{request.path}: wanted a client on this machine, found {peer(request)}; ask on the "
            "machine itself, through a tunnel (ssh -L), or through a proxy there that "
            "authenticates",
        )


def is_local(request: web.Request) -> bool:
    """Whether the connection comes over the loopback interface.

    Only the socket's other end counts, never a header: anybody may send those. In the node's
    network everybody on the node is local, in a pod's own only the pod and `kubectl port-forward`.
    """
    return is_loopback(peer(request))


def peer(request: web.Request) -> str:
    """The address of the socket's other end; "" when it is gone or has none."""
    name = request.transport.get_extra_info("peername") if request.transport else None
    return str(name[0]) if isinstance(name, tuple) and name else ""
