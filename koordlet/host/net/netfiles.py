"""Text of files below /proc/net as values, default routes, and names of network interfaces."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from koordlet.host.procfiles import shown

_MAX_NAME_LENGTH = 15  # IFNAMSIZ without the zero byte
_RESERVED_NAMES = frozenset(
    {".", "..", "all", "default"}
)  # the last two are directories of sysctls


def parse_interface(data: bytes) -> str:
    """Return the name of an interface, or "" for none. Raises ValueError: no interface has it."""
    name = data.decode("ascii", "replace").removesuffix("\n")
    if name and not is_interface_name(name):
        raise ValueError(f"wanted the name of an interface, found {name!r:.60}")
    return name


def is_interface_name(name: str) -> bool:
    """Whether an interface can have a name: what the kernel allows, of printable ASCII."""
    plain = name.isascii() and name.isprintable() and not set("/: ") & set(name)
    return plain and 0 < len(name) <= _MAX_NAME_LENGTH and name not in _RESERVED_NAMES


_NET_DEV_COLUMNS = 16


class InterfaceCounters(NamedTuple):
    """Traffic of one interface since it was created: the columns of /proc/net/dev, in order."""

    rx_bytes: int
    rx_packets: int
    rx_errs: int
    rx_drop: int
    rx_fifo: int
    rx_frame: int
    rx_compressed: int
    rx_multicast: int
    tx_bytes: int
    tx_packets: int
    tx_errs: int
    tx_drop: int
    tx_fifo: int
    tx_colls: int
    tx_carrier: int
    tx_compressed: int
    rx_nohandler: int | None = None  # only rtnetlink has it


def parse_net_dev(data: bytes) -> dict[str, InterfaceCounters]:
    """Return the counters by interface name, from a net/dev file.

    Raises:
        ValueError: the two header lines are missing, or a line has not exactly 16 counters; the
            whole file is refused then, because its other columns cannot be trusted either.

    Source: kernel docs, networking/statistics.
    """
    lines = data.splitlines()
    if len(lines) < 2 or b"|" not in lines[0] or b"|" not in lines[1]:
        raise ValueError(f"wanted two header lines, found {shown(data)}")
    counters = {}
    for line in lines[2:]:
        name, _, rest = line.partition(b":")
        columns = rest.split()
        if len(columns) != _NET_DEV_COLUMNS or not b"".join(columns).isdigit():
            raise ValueError(f"wanted 'interface: ' and 16 counters, found {shown(line)}")
        counters[name.strip().decode(errors="replace")] = InterfaceCounters(*map(int, columns))
    return counters


def parse_netstat(data: bytes) -> dict[str, dict[str, int]]:
    """Return protocol -> field -> value, from net/netstat or net/snmp.

    Each protocol has a line of names and a line of values: `Tcp: InSegs ...`, `Tcp: 12 ...`.
    A value may be negative (Tcp MaxConn is -1 for "dynamic").
    """
    lines = data.splitlines()
    if not lines or len(lines) % 2:
        raise ValueError(f"wanted pairs of lines, found {len(lines)} lines")
    return dict(map(_protocol, lines[::2], lines[1::2]))


def _protocol(names: bytes, values: bytes) -> tuple[str, dict[str, int]]:
    label, *fields = names.split()
    found = values.split()
    if found[:1] != [label] or len(found) != len(fields) + 1 or not label.endswith(b":"):
        raise ValueError(f"wanted a line of names and one of values, found {shown(names)}")
    return label[:-1].decode(), dict(
        zip(map(_decode_text, fields), map(_signed, found[1:]), strict=True)
    )


_TCP = re.compile(rb"^Tcp:([^\n]*)\nTcp:([^\n]*)\n", re.MULTILINE)


def parse_tcp_retransmits(data: bytes) -> int:
    """Return the TCP segments sent again since the namespace was made, from net/snmp.

    A sixth of the time that parse_netstat takes for all of the file (10 us, not 58).

    Raises:
        ValueError: there is no such counter.
    """
    found = _TCP.search(data)
    if found is not None:
        names, values = found[1].split(), found[2].split()
        if b"RetransSegs" in names and len(values) == len(names):
            value = values[names.index(b"RetransSegs")]
            if value.isdigit():
                return int(value)
    raise ValueError(f"wanted Tcp RetransSegs, found {shown(data)}")


def parse_snmp6(data: bytes) -> dict[str, dict[str, int]]:
    """Return protocol -> field -> value, from net/snmp6: `Ip6InOctets 12` is Ip6 -> InOctets."""
    protocols: dict[str, dict[str, int]] = {}
    for line in data.splitlines():
        name, value = _name_and_value(line)
        protocol, six, field = name.partition("6")
        if six:
            protocols.setdefault(protocol + six, {})[field] = value
    if not protocols:
        raise ValueError(f"wanted lines 'Ip6InReceives 0', found {shown(data)}")
    return protocols


def parse_sockstat(data: bytes) -> dict[str, dict[str, int]]:
    """Return protocol -> field -> value, from net/sockstat or net/sockstat6.

    Fields are counts, but for mem (pages) and memory (bytes). A line is `TCP: inuse 5 orphan 0`.
    """
    protocols = {}
    for line in data.splitlines():
        label, colon, rest = line.partition(b":")
        words = rest.split()
        if not colon or len(words) % 2:
            raise ValueError(f"wanted 'TCP: inuse 5 ...', found {shown(line)}")
        protocols[_decode_text(label)] = dict(
            zip(map(_decode_text, words[::2]), map(_signed, words[1::2]), strict=True)
        )
    if not protocols:
        raise ValueError("wanted lines 'TCP: inuse 5 ...', found an empty file")
    return protocols


class Softnet(NamedTuple):
    """Counts of received packets on one CPU since boot."""

    processed: int
    dropped: int  # its backlog queue was full
    squeezed: int  # it had to stop before its queue was empty


def parse_softnet(data: bytes) -> dict[int, Softnet]:
    """Return the counters by CPU number, from net/softnet_stat (hexadecimal, a line per CPU).

    Column 13 holds the CPU number; kernels before 5.10 lack it, and there the number of the line
    is the best guess (wrong only while a CPU is offline).
    """
    counters = {}
    for number, columns in enumerate(_hexadecimal_lines(data)):
        cpu = columns[12] if len(columns) > 12 else number
        counters[cpu] = Softnet(*columns[:3])
    if not counters:
        raise ValueError("wanted a line per CPU, found an empty file")
    return counters


def _hexadecimal_lines(data: bytes) -> Iterator[list[int]]:
    for line in data.splitlines():
        columns = [int(column, 16) for column in line.split()]
        if len(columns) < 3:
            raise ValueError(f"wanted at least three columns, found {shown(line)}")
        yield columns


def _name_and_value(line: bytes) -> tuple[str, int]:
    words = line.split()
    if len(words) != 2:
        raise ValueError(f"wanted a name and a number, found {shown(line)}")
    return _decode_text(words[0]), _signed(words[1])


def _signed(word: bytes) -> int:
    if not word.removeprefix(b"-").isdigit():
        raise ValueError(f"wanted an integer, found {shown(word)}")
    return int(word)


def _decode_text(word: bytes) -> str:
    return word.decode(errors="replace")


_UP, _REJECT = 0x1, 0x200  # RTF_*

_Route = tuple[int, str]  # metric and interface
_Read = Callable[[list[str]], _Route | None]  # raises ValueError, IndexError


def parse_default_interface(data: bytes) -> str:
    """Return the interface of the IPv4 default route of least metric; "": there is none.

    From net/route, which has the main table alone.

    Raises:
        ValueError: a line is none of that file.
    """
    return _first_default(data.splitlines()[1:], _is_default_route)


def parse_default_interface_6(data: bytes) -> str:
    """Return the interface of the IPv6 default route of least metric; "": there is none.

    From net/ipv6_route.

    Raises:
        ValueError: a line is none of that file.
    """
    return _first_default(data.splitlines(), _is_default_route_6)


def _first_default(lines: Iterable[bytes], default: _Read) -> str:
    found: list[_Route] = []
    for line in lines:
        try:
            route = default(line.decode("ascii", "replace").split())
        except (ValueError, IndexError) as err:
            raise ValueError(f"wanted a route, found {shown(line)}") from err
        if route is not None and is_interface_name(route[1]):
            found.append(route)
    return min(found, key=lambda route: route[0])[1] if found else ""


def _is_default_route(columns: list[str]) -> _Route | None:
    interface, to, _, flags, _, _, metric, mask, *_ = columns
    if int(flags, 16) & (_UP | _REJECT) != _UP or int(to, 16) or int(mask, 16):
        return None
    return int(metric), interface


def _is_default_route_6(columns: list[str]) -> _Route | None:
    to, length, _, _, _, metric, _, _, flags, interface = columns
    if int(flags, 16) & (_UP | _REJECT) != _UP or int(to, 16) or int(length, 16):
        return None
    return int(metric, 16), interface
