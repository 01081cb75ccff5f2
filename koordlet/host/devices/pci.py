"""PCI devices in sysfs: their address, and where they are connected."""

import os
import re
from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.proc.procfiles import parse_int
from koordlet.rules.devices import DeviceTopology

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")
_BUS = "bus/pci/devices"


def pci_address(text: str) -> str:
    """Return an address in the kernel's form, "0000:3b:00.0".

    NVML writes eight digits of the domain and capital letters.

    Raises:
        ValueError: it is none, so nothing that may become part of a path.
    """
    found = _ADDRESS.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"wanted a PCI address such as 0000:3b:00.0, found {text[:40]!r}")
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4]}"


def pci_directory(sys: Path, address: str) -> Path:
    """The directory of a device below /sys. Raises ValueError as pci_address does."""
    return sys / _BUS / pci_address(address)


def pci_topology(sys: Path, address: str) -> DeviceTopology | None:
    """Where a device is connected; None: the kernel does not say.

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
    roots = [part for part in Path(path).parts if _ROOT.fullmatch(part)]
    if not roots:
        return None
    return DeviceTopology(max(numa, 0), roots[0], pci_address(address))
