"""Traffic control of an interface: the tree of HTB classes as text, and what reads and sets it.

The text is one line, made of parts in one order; `absent` is what the kernel has by itself.
"""

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from koordlet.host.errors import KernelFileError
from koordlet.host.resource import ABSENT, Text, optional_text


class ForeignQdisc(KernelFileError):
    """The root qdisc is another agent's, a CNI's say. It is never replaced."""


class TrafficRefused(KernelFileError):
    """The kernel rejects the tree; the state before it is in force again."""


class TrafficControl(Protocol):
    """Reads and sets the root of interfaces, in the network namespace of the caller. Blocking.

    Never touched: ingress, clsact, and interfaces that are not named.
    """

    def read(self, interface: str) -> bytes | None:
        """Return the state at the root, as a line; None: there is no interface of that name.

        `absent`: what the kernel has by itself, or a tree that is half-made; `foreign KIND`:
        another agent's; `altered`: ours, changed by another; or our tree.

        Raises:
            KernelFileError: the kernel does not answer, or refuses.
        """

    def identity(self, interface: str) -> int:
        """Return the number of an interface (ifindex): a name alone may be used again.

        What a write of ours left half-made, because its process was killed, is deleted.

        Raises:
            OSError: ENODEV: there is none of that name.
            KernelFileError: the kernel does not answer, or refuses.
        """

    def veth_peer(self, pid: int) -> str:
        """Return the node's end of a process's virtual interface (veth); "": it has none.

        Of several it is that of the interface which the process's network namespace had first.

        Raises:
            OSError: ESRCH: there is no such process.
            KernelFileError: the kernel does not answer, or refuses.
        """

    def supports_cgroup_map(self) -> bool:
        """Whether packets of the node's own sockets can be classified by cgroups of v2.

        Raises:
            KernelFileError: the kernel does not answer.
        """

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """Set the content: all of it or, on any error, nothing.

        Raises:
            ValueError: the content is none.
            OSError: ENODEV: there is none of that name, or it is another one.
            ForeignQdisc: another agent's qdisc is at the root.
            TrafficRefused: the kernel refuses.
            KernelFileError: the kernel does not answer.
        """


def no_such_interface(interface: str) -> OSError:
    """Return the error of identity and write for a missing interface."""
    return OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)


MAJOR = 0x6B6C0000  # of the handles of ours
MAX_CLASSES = 4096
MAX_MATCHES = 4000  # of one IP version: u32 numbers 4095
MAX_TEXT_BYTES = 1 << 20  # bytes of a text
MIN_RATE = 1000  # bytes per second; the kernel's tables hold the time a packet takes
MAX_RATE = 1 << 42
MAX_MINOR = 0xFFFE  # the last one is kept for the time of a change
MAX_CGROUP_LEVEL = 32  # of a cgroup
MAX_CLASS_DEPTH = 4  # of HTB's 8 levels
FOREIGN, MODIFIED = "foreign", "altered"
SIDES = ("from", "to")
NODE_NETWORK = "the node's network namespace (hostNetwork, or a program of the host)"
NEEDS = (
    "CONFIG_NET_SCH_HTB and CONFIG_NET_CLS_U32 (the modules sch_htb and cls_u32), in "
    f"{NODE_NETWORK}"
)

Address = IPv4Address | IPv6Address

_DEFAULT = re.compile(r"default (0|[1-9]\d{0,4})", re.ASCII)
_CLASS = re.compile(
    r"class ([1-9]\d{0,4}) below (0|[1-9]\d{0,4})"
    r" rate ([1-9]\d{0,12}) ceil ([1-9]\d{0,12}) prio ([0-7])",
    re.ASCII,
)
_MATCH = re.compile(r"(from|to) ([0-9a-f.:]{2,39}) class ([1-9]\d{0,4})", re.ASCII)
_SOCKET = re.compile(r"socket ([1-9]\d?)/([1-9]\d{0,19}) class ([1-9]\d{0,4})", re.ASCII)
_FOREIGN = re.compile(rf"{FOREIGN} [a-z0-9_]{{1,15}}|{MODIFIED}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class TrafficClass:
    """A class; rate is what it gets in any case, ceil the most it may borrow, in bytes/s."""

    minor: int
    below: int  # the class above; 0: the root
    rate: int
    ceil: int
    prio: int  # 0 to 7; the lowest number borrows first

    def __str__(self) -> str:
        return (
            f"class {self.minor} below {self.below}"
            f" rate {self.rate} ceil {self.ceil} prio {self.prio}"
        )


@dataclass(frozen=True, slots=True)
class AddressMatch:
    """A match of packets by address, and their class."""

    side: str  # one of SIDES
    address: Address
    minor: int

    @property
    def order(self) -> tuple[str, int, int]:
        """The sort key of the match in a text."""
        return (self.side, self.address.version, int(self.address))

    def __str__(self) -> str:
        return f"{self.side} {self.address} class {self.minor}"


@dataclass(frozen=True, slots=True, order=True)
class CgroupMatch:
    """A match of packets by socket: those of a cgroup of v2, and of cgroups below it."""

    level: int  # of the cgroup; 1: right below the root
    cgroup: int  # its number
    minor: int

    def __str__(self) -> str:
        return f"socket {self.level}/{self.cgroup} class {self.minor}"


@dataclass(frozen=True, slots=True)
class TrafficTree:
    """The HTB tree at the root of an interface. Classes and matches have the text's order."""

    default: int  # the class of what nothing matches; 0: not shaped
    classes: tuple[TrafficClass, ...]
    matches: tuple[AddressMatch, ...] = ()
    sockets: tuple[CgroupMatch, ...] = ()

    @classmethod
    def of(
        cls,
        default: int,
        classes: list[TrafficClass],
        matches: list[AddressMatch],
        sockets: Iterable[CgroupMatch] = (),
    ) -> "TrafficTree":
        """Return a tree in order. Raises ValueError: it is none."""
        ordered = sorted(matches, key=lambda match: match.order)
        tree = cls(default, tuple(sorted(classes)), tuple(ordered), tuple(sorted(sockets)))
        tree.check()
        return tree

    def check(self) -> None:
        """Raise ValueError unless the kernel can have it."""
        if len(self.classes) > MAX_CLASSES:
            raise ValueError(f"wanted at most {MAX_CLASSES} classes, found {len(self.classes)}")
        depth = {0: 0}
        for each in self.classes:  # a class comes after the one above it: numbers grow downwards
            _check_class(each, depth)
            depth[each.minor] = depth[each.below] + 1
        if not self.classes or self.default not in depth:
            raise ValueError(f"wanted the default class {self.default} among the classes")
        self._check_matches(depth)
        self._check_sockets(depth)

    def _check_sockets(self, known: dict[int, int]) -> None:
        cgroups = {each.cgroup for each in self.sockets}
        if len(cgroups) < len(self.sockets) or len(cgroups) > MAX_MATCHES:
            raise ValueError(f"wanted one class of a cgroup, {MAX_MATCHES} cgroups at most")
        for each in self.sockets:
            if not known.get(each.minor) or not 0 < each.level <= MAX_CGROUP_LEVEL:
                raise ValueError(f"wanted a level and a class that is there, found {str(each)!r}")
            if not 0 < each.cgroup < 1 << 64:
                raise ValueError(f"wanted a number of 64 bits, found {each.cgroup}")

    def _check_matches(self, known: dict[int, int]) -> None:
        seen: set[tuple[str, int, int]] = set()
        counts = {4: 0, 6: 0}
        for match in self.matches:
            if match.side not in SIDES or not known.get(match.minor):
                raise ValueError(f"wanted a side and a class that is there, found {str(match)!r}")
            if isinstance(match.address, IPv6Address) and match.address.scope_id is not None:
                raise ValueError("wanted an address without a zone")
            if match.order in seen:
                raise ValueError(f"wanted one class of {match.side} {match.address}, found two")
            seen.add(match.order)
            counts[match.address.version] += 1
        if max(counts.values()) > MAX_MATCHES:
            raise ValueError(f"wanted at most {MAX_MATCHES} addresses, found {counts}")

    def __str__(self) -> str:
        return "; ".join(
            map(str, (f"default {self.default}", *self.classes, *self.matches, *self.sockets))
        )


def _check_class(each: TrafficClass, depth: dict[int, int]) -> None:
    if each.minor in depth or not 0 < each.minor <= MAX_MINOR:
        raise ValueError(f"wanted each class once, 1 to {MAX_MINOR}, found {each.minor}")
    if depth.get(each.below, MAX_CLASS_DEPTH) >= MAX_CLASS_DEPTH:
        raise ValueError(f"wanted class {each.minor} below a lower number, found {each.below}")
    if not (MIN_RATE <= each.rate <= each.ceil <= MAX_RATE and 0 <= each.prio <= 7):
        raise ValueError(f"wanted {MIN_RATE} <= rate <= ceil <= {MAX_RATE}, found {each}")


def parse_tree(text: str) -> TrafficTree:
    """Return the tree of a text. Raises ValueError: it is none, or has another form."""
    if len(text) > MAX_TEXT_BYTES:
        raise ValueError(f"wanted at most {MAX_TEXT_BYTES} bytes, found {len(text)}")
    first, *rest = text.split("; ")
    default = _DEFAULT.fullmatch(first)
    if default is None:
        raise ValueError(f"wanted 'default N; class …', found {text!r:.60}")
    classes, matches, sockets = [], [], []
    for part in rest:
        if found := _CLASS.fullmatch(part):
            classes.append(TrafficClass(*map(int, found.groups())))
        elif found := _MATCH.fullmatch(part):
            matches.append(AddressMatch(found[1], ip_address(found[2]), int(found[3])))
        elif found := _SOCKET.fullmatch(part):
            sockets.append(CgroupMatch(*map(int, found.groups())))
        else:
            raise ValueError(f"wanted a class, or an address and its class, found {part!r:.60}")
    tree = TrafficTree.of(int(default[1]), classes, matches, sockets)
    if str(tree) != text:
        raise ValueError(f"wanted the parts in order, found {text!r:.60}")
    return tree


def is_tree(text: str) -> bool:
    """Accept a tree as TrafficTree writes it."""
    try:
        parse_tree(text)
    except ValueError:
        return False
    return True


def is_kernel_state(text: str) -> bool:
    """Whether it may have been there before, and be restored: a tree of ours, or nothing."""
    return text == ABSENT or is_tree(text)


def parse_traffic(data: bytes) -> str:
    """Return the text of what TrafficControl reads. Raises ValueError: it reads no such thing."""
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"wanted at most {MAX_TEXT_BYTES} bytes, found {len(data)}")
    return _traffic(data.decode("ascii", "replace").removesuffix("\n"))


def _traffic(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"wanted traffic classes as text, found {text!r:.60}")  # noqa: TRY004 - as all texts
    if text != ABSENT and _FOREIGN.fullmatch(text) is None:
        parse_tree(text)
    return text


TRAFFIC: Text[str] = optional_text(Text(_traffic, parse_traffic, _traffic))
