"""Devices that the agents of their vendors describe in files of JSON.

Source: Koordinator pkg/koordlet/metricsadvisor/devices/helper (xpu device infos).
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from koord.api.decoding.fields import Fields
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject
from koord.util.printable import printable
from koordlet.host.devices.pci import pci_address
from koordlet.host.files import read_up_to
from koordlet.rules.devices import (
    GPU_CORE,
    GPU_MEMORY,
    UNKNOWN,
    DeviceTopology,
    PeerLink,
    Xpu,
    XpuSet,
    reason,
)

MOST_FILES = 64
MOST_BYTES = 1 << 20
MOST_DEVICES = 256  # in all files
_MOST_RESOURCES = 64  # of a device
_LONGEST_TEXT = 128  # characters
_LONGEST_MESSAGE = 1024
_LARGEST = 2**31 - 1
_ANY = -1  # NUMA node or socket: not known
_PREFIXED = {"gpu-core": GPU_CORE, "gpu-memory": GPU_MEMORY}
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_DECIMAL = re.compile(r"-?[0-9]{1,10}")
_PCIE = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}")
_PEER = re.compile(r"[0-9]{1,9}")


class ParsedXpus(NamedTuple):
    """The devices of a file, and what is wrong with the first of those that were left out."""

    xpus: tuple[Xpu, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A file as it was read last; xpus is None while it was never good."""

    signature: tuple[int, int, int]
    xpus: tuple[Xpu, ...] | None
    problem: str


class XpuFiles:
    """Reads the files of a directory when they have changed. For one thread.

    A bad device costs only itself. A file that is no list of devices any more keeps what it said
    when it was one; one that never was has no devices, and the set is not complete. problem names
    the first thing that is wrong.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, _Known] = {}
        self.problem = ""

    def read(self) -> XpuSet:
        """Return all devices by UUID; none when there is no such directory."""
        problems: list[str] = []
        try:
            names = self._names()
        except OSError as err:
            names = sorted(self._known)
            problems.append(f"{printable(self._directory)}: {err.strerror}")
        if len(names) > MOST_FILES:
            problems.append(f"{len(names)} files; the first {MOST_FILES} by name count")
            names = names[:MOST_FILES]
        complete = not problems
        self._known = {name: self._look(name) for name in names}
        found: dict[str, Xpu] = {}
        for name, known in self._known.items():
            problems += [known.problem] if known.problem else []
            complete = complete and known.xpus is not None
            for xpu in known.xpus or ():
                if xpu.uuid in found:
                    problems.append(f"{printable(name)}: {xpu.uuid} is in another file, too")
                found.setdefault(xpu.uuid, xpu)
        if len(found) > MOST_DEVICES:
            problems.append(f"{len(found)} devices; the first {MOST_DEVICES} by UUID count")
            complete = False
        self.problem = next(iter(problems), "")
        return XpuSet(tuple(found[uuid] for uuid in sorted(found)[:MOST_DEVICES]), complete)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and not entry.is_dir(follow_symlinks=False)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _look(self, name: str) -> _Known:
        path, known = self._directory / name, self._known.get(name)
        earlier = None if known is None else known.xpus
        try:
            # Not a link: what it leads to is not for us. Not blocking: it may be a FIFO.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(path, flags)
        except OSError as err:
            return _Known((0, 0, 0), earlier, f"{printable(path)}: {err.strerror}")
        try:
            found = os.fstat(descriptor)
            signature = (found.st_mtime_ns, found.st_size, found.st_ino)
            if known is not None and known.signature == signature:
                return known
            if problem := _unsafe(found):
                return _Known(signature, earlier, f"{printable(path)}: {problem}")
            data = read_up_to(descriptor, MOST_BYTES + 1)
        except OSError as err:
            return _Known((0, 0, 0), earlier, f"{printable(path)}: {err.strerror}")
        finally:
            os.close(descriptor)
        try:
            return _Known(signature, *parse_xpus(data, printable(name)))
        except InvalidObject as err:
            return _Known(signature, earlier, str(err))


def parse_xpus(data: bytes, where: str) -> ParsedXpus:
    """Return the devices that a file describes. where is named in errors.

    As in Go, the case of keys does not matter. A device that is malformed, or has the UUID of
    another one, is left out.

    Raises:
        InvalidObject: it is no JSON array.
    """
    if len(data) > MOST_BYTES:
        raise InvalidObject(where, wanted=f"at most {MOST_BYTES} bytes", found="more")
    found = decode_line(data, where)
    if found is None:
        return ParsedXpus(())
    if not isinstance(found, list):
        raise InvalidObject(where, wanted="an array of devices", found=found)
    if len(found) > MOST_DEVICES:
        raise InvalidObject(where, wanted=f"at most {MOST_DEVICES} devices", found=len(found))
    xpus: dict[str, Xpu] = {}
    problems: list[str] = []
    for index, each in enumerate(found):
        place = f"{where}[{index}]"
        try:
            xpu = _xpu(Fields(each, place, fold_case=True))
        except InvalidObject as err:
            problems.append(str(err))
            continue
        if xpus.setdefault(xpu.uuid, xpu) is not xpu:
            problems.append(f"{place}: wanted a UUID of its own, found {xpu.uuid} twice")
    return ParsedXpus(tuple(xpus.values()), next(iter(problems), ""))


def _xpu(fields: Fields) -> Xpu:
    status = fields.nested("status")
    well = fields.get("status") is None or status.boolean("healthy")
    topology = None if fields.get("topology") is None else fields.nested("topology")
    return Xpu(
        vendor=_word(fields, "vendor"),
        model=_word(fields, "model"),
        uuid=_word(fields, "uuid", required=True),
        minor=_number(fields, "minor", least=0),
        resources=_resources(fields),
        topology=_topology(topology) if topology else None,
        links=tuple(_links(topology)) if topology else (),
        must_honor_partition=topology.boolean("mustHonorPartition") if topology else False,
        error="" if well else reason(status.text("errCode") or UNKNOWN),
        message="" if well else printable(status.text("errMessage"))[:_LONGEST_MESSAGE],
    )


def _word(fields: Fields, key: str, *, required: bool = False) -> str:
    text = fields.required_text(key) if required else fields.text(key)
    if len(text) > _LONGEST_TEXT or printable(text) != text or not text.isascii():
        wanted = f"at most {_LONGEST_TEXT} plain characters"
        raise InvalidObject(fields.path(key), wanted=wanted, found=printable(text))
    return text


def _number(fields: Fields, key: str, *, least: int, default: int | None = None) -> int:
    """A number of 31 bits, or a text of one as Koordinator's format has it; "" is none."""
    value = fields.get(key)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if value in (None, "") and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise InvalidObject(fields.path(key), wanted=f"a number from {least}", found=value)
    return value


def _resources(fields: Fields) -> dict[str, str]:
    found = fields.quantities("resources")
    if len(found) > _MOST_RESOURCES:
        wanted = f"at most {_MOST_RESOURCES} resources"
        raise InvalidObject(fields.path("resources"), wanted=wanted, found=len(found))
    for name, amount in found.items():
        if not _RESOURCE.fullmatch(name) or amount.strip().startswith("-"):
            where = fields.path("resources")
            raise InvalidObject(where, wanted="a name and an amount", found=f"{name}: {amount}")
    return {_PREFIXED.get(name, name): amount.strip() for name, amount in found.items()}


def _topology(fields: Fields) -> DeviceTopology:
    """Where it is connected. Its socket is not reported, so it may be any number."""
    pcie, bus = fields.text("pcieID"), fields.text("busID")
    _number(fields, "socketID", least=_ANY, default=_ANY)
    numa = _number(fields, "nodeID", least=_ANY, default=_ANY)
    if pcie and not _PCIE.fullmatch(pcie):
        raise InvalidObject(fields.path("pcieID"), wanted="a PCIe id", found=printable(pcie))
    try:
        return DeviceTopology(numa, pcie, pci_address(bus) if bus else "")
    except ValueError as err:
        raise InvalidObject(fields.path("busID"), wanted="a PCI address", found=bus) from err


def _links(topology: Fields) -> Iterator[PeerLink]:
    """The links; those without a type or peers are left out."""
    for fields in topology.objects("p2pLinks"):
        type_, peers = _word(fields, "type"), _peers(fields)
        if type_ and peers:
            yield PeerLink(type_, peers)


def _peers(fields: Fields) -> tuple[int, ...]:
    """The minors of peerMinor, a list of numbers with commas; one may be a number."""
    value = fields.get("peerMinor")
    if isinstance(value, int) and not isinstance(value, bool):
        return (_number(fields, "peerMinor", least=0),)
    text = fields.text("peerMinor")
    peers = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(peers) > MOST_DEVICES or not all(map(_PEER.fullmatch, peers)):
        wanted = "numbers with commas between them"
        raise InvalidObject(fields.path("peerMinor"), wanted=wanted, found=printable(text))
    return tuple(map(int, peers))


def _unsafe(found: os.stat_result) -> str:
    """Why a file is not read; "": it may be. Another user's could take GPUs from the cluster."""
    if not stat.S_ISREG(found.st_mode):
        return "wanted a file, found something else"
    if found.st_uid not in (0, os.geteuid()):
        return f"wanted a file of root, found one of user {found.st_uid}; chown it"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "wanted a file that only its owner can write, found others can; chmod go-w"
    return ""
