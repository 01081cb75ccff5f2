"""Devices that the agents of their vendors describe in files of JSON.

Source: Koordinator pkg/koordlet/metricsadvisor/devices/helper (xpu device infos).
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from koord.api.decoding.fields import Fields
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject
from koord.util.printable import printable
from koordlet.host.devices.pci import pci_address
from koordlet.host.errors import KernelFileError
from koordlet.host.files import read_up_to
from koordlet.rules.devices import (
    GPU_CORE,
    GPU_MEMORY,
    UNKNOWN,
    DeviceTopology,
    PeerLink,
    Xpu,
    reason,
)

MOST_FILES = 64
MOST_BYTES = 1 << 20
MOST_DEVICES = 256  # in all files
_MOST_RESOURCES = 64  # of a device
_LONGEST_TEXT = 128  # characters
_LONGEST_MESSAGE = 1024
_LARGEST_MINOR = 2**31 - 1
_PREFIXED = {"gpu-core": GPU_CORE, "gpu-memory": GPU_MEMORY}
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_PCIE = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}")
_HINT = "have the vendor's agent write a JSON array of devices; the last good one stays in force"


@dataclass(frozen=True, slots=True)
class _Known:
    """A file as it was read last; xpus is None while it was never good."""

    signature: tuple[int, int, int]
    xpus: tuple[Xpu, ...] | None
    problem: str


class XpuFiles:
    """Reads the files of a directory when they have changed. For one thread.

    A file that is not good any more keeps what it said when it was. problem names the first such
    file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, _Known] = {}
        self.problem = ""

    def read(self) -> tuple[Xpu, ...]:
        """Return all devices by UUID; none when there is no such directory.

        Raises:
            KernelFileError: a file was never good, so it is not known which devices there are.
        """
        names = self._names()
        self._known = {name: self._look(name) for name in names}
        for name in names:
            if self._known[name].xpus is None:
                raise _unusable(self._directory / name, self._known[name].problem)
        self.problem = next((each.problem for each in self._known.values() if each.problem), "")
        found: dict[str, Xpu] = {}
        for name in names:
            for xpu in self._known[name].xpus or ():
                if xpu.uuid in found:
                    self.problem = self.problem or f"{name}: {xpu.uuid} is in another file, too"
                found.setdefault(xpu.uuid, xpu)
        if len(found) > MOST_DEVICES:
            raise _unusable(self._directory, f"{len(found)} devices; {MOST_DEVICES} at most")
        return tuple(found[uuid] for uuid in sorted(found))

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._directory) as entries:
                names = sorted(
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and not entry.is_dir(follow_symlinks=False)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as err:
            raise KernelFileError.from_os_error(str(self._directory), err) from err
        if len(names) > MOST_FILES:
            raise _unusable(self._directory, f"{len(names)} files; {MOST_FILES} at most")
        return names

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
            return _Known(signature, parse_xpus(data, printable(name)), "")
        except InvalidObject as err:
            return _Known(signature, earlier, str(err))


def parse_xpus(data: bytes, where: str) -> tuple[Xpu, ...]:
    """Return the devices that a file describes. where is named in errors.

    Raises:
        InvalidObject: it is no JSON array of such devices.
    """
    if len(data) > MOST_BYTES:
        raise InvalidObject(where, wanted=f"at most {MOST_BYTES} bytes", found="more")
    found = decode_line(data, where)
    if not isinstance(found, list):
        raise InvalidObject(where, wanted="an array of devices", found=found)
    if len(found) > MOST_DEVICES:
        raise InvalidObject(where, wanted=f"at most {MOST_DEVICES} devices", found=len(found))
    xpus = tuple(_xpu(Fields(each, f"{where}[{index}]")) for index, each in enumerate(found))
    if len({xpu.uuid for xpu in xpus}) < len(xpus):
        raise InvalidObject(where, wanted="a UUID of its own for each device", found="one twice")
    return xpus


def _xpu(fields: Fields) -> Xpu:
    topology, status = fields.nested("topology"), fields.nested("status")
    well = status.raw.get("healthy") is None or status.boolean("healthy")
    return Xpu(
        vendor=_word(fields, "vendor"),
        model=_word(fields, "model"),
        uuid=_word(fields, "uuid", required=True),
        minor=_minor(fields),
        resources=_resources(fields),
        topology=_topology(topology) if topology.raw else None,
        links=tuple(map(_link, topology.objects("p2pLinks"))),
        must_honor_partition=topology.boolean("mustHonorPartition"),
        error="" if well else reason(status.text("errCode") or UNKNOWN),
        message="" if well else printable(status.text("errMessage"))[:_LONGEST_MESSAGE],
    )


def _word(fields: Fields, key: str, *, required: bool = False) -> str:
    text = fields.required_text(key) if required else fields.text(key)
    if len(text) > _LONGEST_TEXT or printable(text) != text or not text.isascii():
        wanted = f"at most {_LONGEST_TEXT} plain characters"
        raise InvalidObject(fields.path(key), wanted=wanted, found=printable(text))
    return text


def _minor(fields: Fields) -> int:
    """A number, which some agents write as a text."""
    value = fields.raw.get("minor")
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 11:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST_MINOR:
        raise InvalidObject(fields.path("minor"), wanted="a number from 0", found=value)
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


def _topology(fields: Fields) -> DeviceTopology | None:
    """Where it is connected; None: the file names links to other devices alone."""
    pcie, bus = fields.text("pcieID"), fields.text("busID")
    numa = fields.integer("nodeID")
    if numa is None or not pcie:
        return None
    if not _PCIE.fullmatch(pcie) or not -1 <= numa <= _LARGEST_MINOR:
        raise InvalidObject(fields.where, wanted="a pcieID and a nodeID", found=dict(fields.raw))
    try:
        return DeviceTopology(max(numa, 0), pcie, pci_address(bus) if bus else "")
    except ValueError as err:
        raise InvalidObject(fields.path("busID"), wanted="a PCI address", found=bus) from err


def _link(fields: Fields) -> PeerLink:
    """A link; peerMinor is a list of numbers with commas."""
    text = fields.text("peerMinor")
    peers = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(peers) > MOST_DEVICES or not all(
        peer.isascii() and peer.isdecimal() and len(peer) < 10 for peer in peers
    ):
        wanted = "numbers with commas between them"
        raise InvalidObject(fields.path("peerMinor"), wanted=wanted, found=text)
    return PeerLink(_word(fields, "type"), tuple(map(int, peers)))


def _unsafe(found: os.stat_result) -> str:
    """Why a file is not read; "": it may be. Another user's could take GPUs from the cluster."""
    if not stat.S_ISREG(found.st_mode):
        return "wanted a file, found something else"
    if found.st_uid not in (0, os.geteuid()):
        return f"wanted a file of root, found one of user {found.st_uid}; chown it"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "wanted a file that only its owner can write, found others can; chmod go-w"
    return ""


def _unusable(path: Path, found: str) -> KernelFileError:
    return KernelFileError(
        printable(path), wanted="descriptions of devices", found=found, hint=_HINT
    )
