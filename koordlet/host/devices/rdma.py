"""RDMA interfaces of the node: the functions of network cards, and their device files.

Source: Koordinator pkg/koordlet/metricsadvisor/devices/rdma; kernel docs, sysfs-class-infiniband.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from koordlet.host.devices.pci import pci_address, pci_directory, pci_topology
from koordlet.host.errors import KernelFileError, NoSuchDevice
from koordlet.host.files import names_in, parse_file
from koordlet.rules.devices import RdmaInterface

_CLASS = "class/infiniband"
_NAME = re.compile(r"mlx[0-9]+_([0-9]{1,9})")
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
    found = (_interface(sys, name) for name in names_in(sys / _CLASS))
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
            raise _missing(address[:40], str(err)) from err
        name = next((each for each in names_in(verbs) if _VERBS.fullmatch(each)), "")
        if not name:
            raise _missing(str(verbs), "none")
        files.append(DeviceFile(f"/dev/infiniband/{name}", *_numbers(verbs / name / "dev")))
    return tuple(files)


def _interface(sys: Path, name: str) -> RdmaInterface | None:
    """The interface of a name; None: it is none that is reported."""
    number = _NAME.fullmatch(name)
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
        functions=tuple(sorted(_functions(pci))),
        ports=len(ports),
        idle_ports=tuple(port for port, active in ports.items() if not active),
    )


def _functions(pci: Path) -> Iterator[str]:
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
        raise _missing(str(path), err.found) from err


def _missing(path: str, found: str) -> NoSuchDevice:
    hint = "load the modules ib_uverbs and rdma_ucm; see whether the card is still there"
    return NoSuchDevice(path, wanted="an RDMA device", found=found, hint=hint)
