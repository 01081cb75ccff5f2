"""Priorities that packets of a cgroup's sockets have, by network interface of the node.

A value is a mapping from an interface to a number; one that is not in it has 0. A number with the
major id of a qdisc is a class of it, which HTB takes without a filter.

Source: kernel docs, admin-guide/cgroup-v1/net_prio; kernel, net/core/netprio_cgroup.c.
"""

import re
from collections.abc import Mapping

from koordlet.host.cgroups.devicevalues import Numbers, by_line, sorted_lines
from koordlet.host.net.tc.names import is_interface_name
from koordlet.host.proc.procfiles import shown

MOST_INTERFACES = 8192
_MOST = (1 << 32) - 1
_NUMBER = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)


def parse_priorities(data: bytes) -> Numbers:
    """Return what is not 0, from lines "<interface> <number>". Raises ValueError."""
    lines = data.decode("ascii", "replace").split("\n")
    if lines.pop() or len(lines) > MOST_INTERFACES:
        raise ValueError(f"wanted lines '<interface> <number>', found {shown(data[-60:])}")
    found: Numbers = {}
    for line in lines:
        name, _, number = line.rpartition(" ")
        if not _NUMBER.fullmatch(number) or name in found:
            raise ValueError(f"wanted '<interface> <number>', each once, found {line!r:.60}")
        found[name] = int(number)
    # A name that is none of ours is some other's, and stays what it is.
    return {name: each for name, each in found.items() if each and is_interface_name(name)}


def _of(value: Numbers) -> str:
    if not isinstance(value, Mapping) or not all(map(_fits, value, value.values())):
        raise ValueError(f"wanted numbers of 32 bits by interface, found {value!r:.60}")
    return sorted_lines((f"{name} {number}" for name, number in value.items() if number), _order)


def _fits(name: object, number: object) -> bool:
    is_number = isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= _MOST
    return is_number and isinstance(name, str) and is_interface_name(name)


def _order(name: str) -> tuple[object, ...]:
    return (name,)


def is_priorities(text: str) -> bool:
    """Accept numbers of 32 bits by interface, one in a line."""
    try:
        found = parse_priorities(f"{text}\n".encode() if text else b"")
    except (ValueError, UnicodeEncodeError):
        return False
    return max(found.values(), default=0) <= _MOST


PRIORITIES = by_line(_of, parse_priorities, lambda name: f"{name} 0", _order)
