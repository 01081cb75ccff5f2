"""The guard of a daemon without an API server: it admits clients on this machine only."""

import ipaddress
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from koord.component.http.refusal import Refusal
from koord.util.address import is_loopback

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[0-9a-zA-Z.-]+))(?::[0-9]{1,5})?")

Guard = Callable[[web.Request], Awaitable[None]]
"""Returns if the client may see more than metrics and health.

Raises:
    Refusal: it may not.
"""


async def local_only(request: web.Request) -> None:
    """The guard of a daemon without an API server that could review tokens."""
    if is_loopback(peer(request)) and not is_local(request):
        raise Refusal(
            403,
            f"{request.path}: wanted a Host header that is localhost or an IP address, found "
            "another; a web page may have sent this, under a name that leads here",
        )
    if not is_local(request):
        raise Refusal(
            403,
            f"{request.path}: wanted a client on this machine, found {peer(request)}; ask on the "
            "machine itself, through a tunnel (ssh -L), or through a proxy there that "
            "authenticates",
        )


def is_local(request: web.Request) -> bool:
    """Whether the connection comes over the loopback interface, and not from a web page.

    Only the socket's other end makes a client local, never a header: all may send those. In the
    node's network every process on the node is local, in a pod's own only the pod and `kubectl
    port-forward`. A page in a browser on this machine may reach us by a name of its own that leads
    to 127.0.0.1 (DNS rebinding): its requests carry that name.
    """
    hosts = request.headers.getall("Host", ())
    return is_loopback(peer(request)) and len(hosts) == 1 and is_no_name(hosts[0])


def is_no_name(host: str) -> bool:
    """Whether a Host header is localhost or an IP address: no foreign DNS leads to those."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    if found["name"] and found["name"].lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(found["v6"] or found["name"])
    except ValueError:
        return False
    return (":" in (found["v6"] or "")) == (found["v6"] is not None)


def peer(request: web.Request) -> str:
    """The address of the socket's other end; "" when it is gone or has none."""
    name = request.transport.get_extra_info("peername") if request.transport else None
    return str(name[0]) if isinstance(name, tuple) and name else ""
