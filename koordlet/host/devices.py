"""Devices of the node: PCI addresses, RDMA interfaces, XPUs.

XPUs are GPUs of other vendors, which their vendors' agents describe in JSON files.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from koord.api.fields import Fields
from koord.util.documents import decode_line
from koord.util.errors import InvalidObject
from koord.util.text import printable
from koordlet.host.errors import KernelFileError, NoSuchDevice
from koordlet.host.files import names_in, parse_file, read_up_to
from koordlet.host.procfiles import parse_int
from koordlet.rules.devices import (
    GPU_CORE,
    GPU_MEMORY,
    UNKNOWN_REASON,
    DeviceTopology,
    PeerLink,
    RdmaInterface,
    Xpu,
    XpuSet,
    condition_reason,
)

_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_PCI_BUS = "bus/pci/devices"


def pci_address(text: str) -> str:
    """Return an address in the kernel's form, "0000:3b:00.0".

    NVML writes eight digits of the domain and capital letters.

    Raises:
        ValueError: it is none, so nothing that may become part of a path.
    """
    found = _PCI_ADDRESS.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"wanted a PCI address such as 0000:3b:00.0, found {text[:40]!r}")
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def pci_directory(sys: Path, address: str) -> Path:
    """The directory of a device below /sys. Raises ValueError as pci_address does."""
    return sys / _PCI_BUS / pci_address(address)


def pci_topology(sys: Path, address: str) -> DeviceTopology | None:
    """Return the place of a device in the PCI topology; None: the kernel does not say.

    A device of no NUMA node counts as one of node 0.

    Raises:
        ValueError: as pci_address.
    """
    directory = pci_directory(sys, address)
    try:
        numa = parse_file(directory / "numa_node", parse_int)
    except KernelFileError:
        return None
    path = os.path.realpath(directory)
    roots = [part for part in Path(path).parts if _PCI_ROOT.fullmatch(part)]
    if not roots:
        return None
    return DeviceTopology(max(numa, 0), roots[0], pci_address(address))


_CLASS = "class/infiniband"
_RDMA_NAME = re.compile(r"mlx[0-9]+_([0-9]{1,9})")
_NETWORK = "0x02"  # PCI class
_ACTIVE = "ACTIVE"
_FUNCTION = "virtfn"
_VERBS = re.compile(r"uverbs[0-9]{1,9}")
_NUMBERS = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A character device."""

    path: str
    major: int
    minor: int


def read_rdma_interfaces(sys: Path) -> tuple[RdmaInterface, ...]:
    """Return the RDMA interfaces that are physical functions of network cards, by number.

    Raises:
        KernelFileError: the state of one cannot be read.
    """
    found = (_rdma_interface(sys, name) for name in names_in(sys / _CLASS))
    interfaces = (each for each in found if each is not None)
    return tuple(sorted(interfaces, key=lambda each: (each.minor, each.name)))


def rdma_files(sys: Path, addresses: Iterable[str]) -> tuple[DeviceFile, ...]:
    """Return the device files that a container needs to use the functions of these PCI addresses.

    Numbers are the kernel's, read from sysfs; nothing below /dev is opened.

    Raises:
        KernelFileError: an address is none, or has no such file.
    """
    manager = sys / "class/misc/rdma_cm/dev"
    files = [DeviceFile("/dev/infiniband/rdma_cm", *_numbers(manager))]
    for address in dict.fromkeys(addresses):
        try:
            verbs = pci_directory(sys, address) / "infiniband_verbs"
        except ValueError as err:
            raise _missing_file(address[:40], str(err)) from err
        name = next((each for each in names_in(verbs) if _VERBS.fullmatch(each)), "")
        if not name:
            raise _missing_file(str(verbs), "none")
        files.append(DeviceFile(f"/dev/infiniband/{name}", *_numbers(verbs / name / "dev")))
    return tuple(files)


def _rdma_interface(sys: Path, name: str) -> RdmaInterface | None:
    """The interface of a name; None: it is none that is reported."""
    number = _RDMA_NAME.fullmatch(name)
    if number is None:
        return None
    directory = sys / _CLASS / name / "device"
    try:
        address = pci_address(os.path.basename(os.path.realpath(directory)))
    except ValueError:
        return None  # software RDMA has no PCI device
    pci = pci_directory(sys, address)
    if os.path.lexists(pci / "physfn"):
        return None  # a virtual function: its card lists it
    topology = pci_topology(sys, address)
    if topology is None or not parse_file(pci / "class", bytes.decode).startswith(_NETWORK):
        return None
    ports = dict(_ports(sys / _CLASS / name / "ports"))
    return RdmaInterface(
        name=name,
        minor=int(number[1]),
        topology=topology,
        functions=tuple(sorted(_pci_functions(pci))),
        ports=len(ports),
        idle_ports=tuple(port for port, active in ports.items() if not active),
    )


def _pci_functions(pci: Path) -> Iterator[str]:
    for name in names_in(pci):
        if name.startswith(_FUNCTION):
            try:
                yield pci_address(os.path.basename(os.readlink(pci / name)))
            except (OSError, ValueError):
                continue  # it has just been taken away


def _ports(ports: Path) -> Iterator[tuple[int, bool]]:
    """Each port by number, and whether it is active; a state is written as "4: ACTIVE"."""
    for name in sorted(names_in(ports)):
        if name.isdecimal() and len(name) < 5:
            state = parse_file(ports / name / "state", bytes.decode)
            yield int(name), state.partition(":")[2].strip() == _ACTIVE


def _numbers(path: Path) -> tuple[int, int]:
    def parse(data: bytes) -> tuple[int, int]:
        found = _NUMBERS.fullmatch(data.decode("ascii", "replace").strip())
        if found is None:
            raise ValueError(f"{data[:40]!r}")
        return int(found[1]), int(found[2])

    try:
        return parse_file(path, parse)
    except KernelFileError as err:
        raise _missing_file(str(path), err.found) from err


def _missing_file(path: str, found: str) -> NoSuchDevice:
    hint = "load the modules ib_uverbs and rdma_ucm; see whether the card is still there"
    return NoSuchDevice(path, wanted="an RDMA device", found=found, hint=hint)


MAX_XPU_FILES = 64
MAX_XPU_FILE_BYTES = 1 << 20
MAX_XPUS = 256  # in all files
_MAX_RESOURCES = 64  # of a device
_MAX_TEXT_LENGTH = 128  # characters
_MAX_MESSAGE_LENGTH = 1024
_MAX_NUMBER = 2**31 - 1
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
class _CachedXpuFile:
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
        self._known: dict[str, _CachedXpuFile] = {}
        self.problem = ""

    def read(self) -> XpuSet:
        """Return all devices by UUID; none when there is no such directory."""
        problems: list[str] = []
        try:
            names = self._names()
        except OSError as err:
            names = sorted(self._known)
            problems.append(f"{printable(self._directory)}: {err.strerror}")
        if len(names) > MAX_XPU_FILES:
            problems.append(f"{len(names)} files; the first {MAX_XPU_FILES} by name count")
            names = names[:MAX_XPU_FILES]
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
        if len(found) > MAX_XPUS:
            problems.append(f"{len(found)} devices; the first {MAX_XPUS} by UUID count")
            complete = False
        self.problem = next(iter(problems), "")
        return XpuSet(tuple(found[uuid] for uuid in sorted(found)[:MAX_XPUS]), complete)

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

    def _look(self, name: str) -> _CachedXpuFile:
        path, known = self._directory / name, self._known.get(name)
        earlier = None if known is None else known.xpus
        try:
            # Not a link: what it leads to is not for us. Not blocking: it may be a FIFO.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            descriptor = os.open(path, flags)
        except OSError as err:
            return _CachedXpuFile((0, 0, 0), earlier, f"{printable(path)}: {err.strerror}")
        try:
            found = os.fstat(descriptor)
            signature = (found.st_mtime_ns, found.st_size, found.st_ino)
            if known is not None and known.signature == signature:
                return known
            if problem := _unsafe_file(found):
                return _CachedXpuFile(signature, earlier, f"{printable(path)}: {problem}")
            data = read_up_to(descriptor, MAX_XPU_FILE_BYTES + 1)
        except OSError as err:
            return _CachedXpuFile((0, 0, 0), earlier, f"{printable(path)}: {err.strerror}")
        finally:
            os.close(descriptor)
        try:
            return _CachedXpuFile(signature, *parse_xpus(data, printable(name)))
        except InvalidObject as err:
            return _CachedXpuFile(signature, earlier, str(err))


def parse_xpus(data: bytes, where: str) -> ParsedXpus:
    """Return the devices that a file describes. where is named in errors.

    As in Go, the case of keys does not matter. A device that is malformed, or has the UUID of
    another one, is left out.

    Raises:
        InvalidObject: it is no JSON array.
    """
    if len(data) > MAX_XPU_FILE_BYTES:
        raise InvalidObject(where, wanted=f"at most {MAX_XPU_FILE_BYTES} bytes", found="more")
    found = decode_line(data, where)
    if found is None:
        return ParsedXpus(())
    if not isinstance(found, list):
        raise InvalidObject(where, wanted="an array of devices", found=found)
    if len(found) > MAX_XPUS:
        raise InvalidObject(where, wanted=f"at most {MAX_XPUS} devices", found=len(found))
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
        vendor=_text_field(fields, "vendor"),
        model=_text_field(fields, "model"),
        uuid=_text_field(fields, "uuid", required=True),
        minor=_number_field(fields, "minor", least=0),
        resources=_resources(fields),
        topology=_topology(topology) if topology else None,
        links=tuple(_links(topology)) if topology else (),
        must_honor_partition=topology.boolean("mustHonorPartition") if topology else False,
        error="" if well else condition_reason(status.text("errCode") or UNKNOWN_REASON),
        message="" if well else printable(status.text("errMessage"))[:_MAX_MESSAGE_LENGTH],
    )


def _text_field(fields: Fields, key: str, *, required: bool = False) -> str:
    text = fields.required_text(key) if required else fields.text(key)
    if len(text) > _MAX_TEXT_LENGTH or printable(text) != text or not text.isascii():
        wanted = f"at most {_MAX_TEXT_LENGTH} plain characters"
        raise InvalidObject(fields.path(key), wanted=wanted, found=printable(text))
    return text


def _number_field(fields: Fields, key: str, *, least: int, default: int | None = None) -> int:
    """A number of 31 bits, or a text of one as Koordinator's format has it; "" is none."""
    value = fields.get(key)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if value in (None, "") and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_NUMBER:
        raise InvalidObject(fields.path(key), wanted=f"a number from {least}", found=value)
    return value


def _resources(fields: Fields) -> dict[str, str]:
    found = fields.quantities("resources")
    if len(found) > _MAX_RESOURCES:
        wanted = f"at most {_MAX_RESOURCES} resources"
        raise InvalidObject(fields.path("resources"), wanted=wanted, found=len(found))
    for name, amount in found.items():
        if not _RESOURCE.fullmatch(name) or amount.strip().startswith("-"):
            where = fields.path("resources")
            raise InvalidObject(where, wanted="a name and an amount", found=f"{name}: {amount}")
    return {_PREFIXED.get(name, name): amount.strip() for name, amount in found.items()}


def _topology(fields: Fields) -> DeviceTopology:
    """Return the topology of a device. Its socket is not reported, so it may be any number."""
    pcie, bus = fields.text("pcieID"), fields.text("busID")
    _number_field(fields, "socketID", least=_ANY, default=_ANY)
    numa = _number_field(fields, "nodeID", least=_ANY, default=_ANY)
    if pcie and not _PCIE.fullmatch(pcie):
        raise InvalidObject(fields.path("pcieID"), wanted="a PCIe id", found=printable(pcie))
    try:
        return DeviceTopology(numa, pcie, pci_address(bus) if bus else "")
    except ValueError as err:
        raise InvalidObject(fields.path("busID"), wanted="a PCI address", found=bus) from err


def _links(topology: Fields) -> Iterator[PeerLink]:
    """The links; those without a type or peers are left out."""
    for fields in topology.objects("p2pLinks"):
        type_, peers = _text_field(fields, "type"), _peers(fields)
        if type_ and peers:
            yield PeerLink(type_, peers)


def _peers(fields: Fields) -> tuple[int, ...]:
    """The minors of peerMinor, a list of numbers with commas; one may be a number."""
    value = fields.get("peerMinor")
    if isinstance(value, int) and not isinstance(value, bool):
        return (_number_field(fields, "peerMinor", least=0),)
    text = fields.text("peerMinor")
    peers = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(peers) > MAX_XPUS or not all(map(_PEER.fullmatch, peers)):
        wanted = "numbers with commas between them"
        raise InvalidObject(fields.path("peerMinor"), wanted=wanted, found=printable(text))
    return tuple(map(int, peers))


def _unsafe_file(found: os.stat_result) -> str:
    """Return why a file is not read; "": it may be. Another user's could take away GPUs."""
    if not stat.S_ISREG(found.st_mode):
        return "wanted a file, found something else"
    if found.st_uid not in (0, os.geteuid()):
        return f"wanted a file of root, found one of user {found.st_uid}; chown it"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "wanted a file that only its owner can write, found others can; chmod go-w"
    return ""
