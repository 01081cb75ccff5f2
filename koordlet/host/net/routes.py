"""Which interface packets to anywhere else leave by, from /proc/net/route and ipv6_route. Pure.

Source: kernel, net/ipv4/fib_trie.c (fib_route_seq_show), net/ipv6/route.c (rt6_info_route).
"""

from collections.abc import Callable, Iterable

from koordlet.host.net.tc.names import is_interface_name
from koordlet.host.proc.procfiles import shown

_UP, _REJECT = 0x1, 0x200  # RTF_*

_Route = tuple[int, str]  # metric and interface
_Read = Callable[[list[str]], _Route | None]  # raises ValueError, IndexError


def parse_default_interface(data: bytes) -> str:
    """Return the interface of the IPv4 default route of least metric; "": there is none.

    From net/route, which has the main table alone.

    Raises:
        ValueError: a line is none of that file.
    """
    return _first(data.splitlines()[1:], _default)


def parse_default_interface_6(data: bytes) -> str:
    """Return the interface of the IPv6 default route of least metric; "": there is none.

    From net/ipv6_route.

    Raises:
        ValueError: a line is none of that file.
    """
    return _first(data.splitlines(), _default_6)


def _first(lines: Iterable[bytes], default: _Read) -> str:
    found: list[_Route] = []
    for line in lines:
        try:
            route = default(line.decode("ascii", "replace").split())
        except (ValueError, IndexError) as err:
            raise ValueError(f"wanted a route, found {shown(line)}") from err
        if route is not None and is_interface_name(route[1]):
            found.append(route)
    return min(found, key=lambda route: route[0])[1] if found else ""


def _default(columns: list[str]) -> _Route | None:
    interface, to, _, flags, _, _, metric, mask, *_ = columns
    if int(flags, 16) & (_UP | _REJECT) != _UP or int(to, 16) or int(mask, 16):
        return None
    return int(metric), interface


def _default_6(columns: list[str]) -> _Route | None:
    to, length, _, _, _, metric, _, _, flags, interface = columns
    if int(flags, 16) & (_UP | _REJECT) != _UP or int(to, 16) or int(length, 16):
        return None
    return int(metric, 16), interface
