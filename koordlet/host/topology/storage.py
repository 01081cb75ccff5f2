"""Local storage: disks, partitions, LVM volumes and mounts, from sysfs and mountinfo.

The same facts as lsblk, vgs, lvs and findmnt print, without spawning a process or entering the
host's mount namespace.

Source: kernel docs, ABI/stable/sysfs-block and ABI/testing/sysfs-block-dm.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, parse_file
from koordlet.host.proc.mounts import parse_mountinfo
from koordlet.host.proc.procfiles import parse_text

_DEVICE = "/dev/"
_MAPPER = "/dev/mapper/"
_NOT_DISKS = ("dm-", "loop", "md", "ram", "sr")
_OPTICAL = "5"  # SCSI peripheral type
_SEPARATOR = re.compile(r"(?<!-)(--)*-(?!-)")


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """The way from a mount point to a disk. Devices are paths like /dev/sda, numbers "8:0"."""

    disk_number: dict[str, str] = field(default_factory=dict)
    partition_disk: dict[str, str] = field(default_factory=dict)
    vg_disk: dict[str, str] = field(default_factory=dict)  # volume groups on exactly one disk
    lv_vg: dict[str, str] = field(default_factory=dict)  # /dev/mapper/<vg>-<lv> -> volume group
    mount_source: dict[str, str] = field(default_factory=dict)  # mount point -> device
    whole_number: dict[str, str] = field(default_factory=dict)  # disks, and loop, md and dm devices

    @property
    def number_disk(self) -> dict[str, str]:
        return {number: disk for disk, number in self.disk_number.items()}


def read_local_storage(sys: Path, proc: Path) -> LocalStorage:
    """Return the local storage of the node.

    A device that cannot be read is left out. Mounts are those that the node's init sees; without
    them (no hostPID) mount_source is empty.
    """
    devices = {device.name: device for device in _block_devices(sys / "block")}
    storage = LocalStorage()
    for device in devices.values():
        path = _DEVICE + device.name
        storage.whole_number[_MAPPER + device.volume if device.volume else path] = device.number
        if device.is_disk:
            storage.disk_number[path] = device.number
            storage.partition_disk.update({_DEVICE + name: path for name in device.partitions})
        elif device.volume:
            storage.lv_vg[_MAPPER + device.volume] = volume_group(device.volume)
    storage.vg_disk.update(_single_disks(devices, storage))
    storage.mount_source.update(_mount_sources(proc / "1/mountinfo", devices.values()))
    return storage


def volume_group(volume: str) -> str:
    """Return the volume group of a device mapper name: "yoda--pool0-lv" is in "yoda-pool0".

    Hyphens within names are doubled, and no logical volume begins with one.
    """
    separator = _SEPARATOR.search(volume)
    return volume[: separator.end() - 1 if separator else None].replace("--", "-")


@dataclass(frozen=True, slots=True)
class _BlockDevice:
    name: str  # as below /sys/block
    number: str
    is_disk: bool
    volume: str  # device mapper name of a logical volume; "" for all others
    partitions: dict[str, str]  # name -> number
    slaves: list[str]  # names of the devices and partitions that it is made of


def _block_devices(block: Path) -> Iterator[_BlockDevice]:
    for name in names_in(block):
        directory = block / name
        number = _text(directory / "dev")
        if number:
            yield _BlockDevice(
                name,
                number,
                is_disk=_is_disk(directory),
                volume=_logical_volume(directory),
                partitions=_partitions(directory),
                slaves=names_in(directory / "slaves"),
            )


def _is_disk(directory: Path) -> bool:
    """Whether lsblk calls it a disk; hidden ones are paths to a disk that is listed itself."""
    return not (
        directory.name.startswith(_NOT_DISKS)
        or _text(directory / "device/type") == _OPTICAL
        or _text(directory / "hidden") == "1"
    )


def _logical_volume(directory: Path) -> str:
    is_lvm = _text(directory / "dm/uuid").startswith("LVM-")
    return _text(directory / "dm/name") if is_lvm else ""


def _partitions(directory: Path) -> dict[str, str]:
    names = [name for name in names_in(directory) if name.startswith(directory.name)]
    return {
        name: _text(directory / name / "dev")
        for name in names
        if (directory / name / "partition").exists()
    }


def _single_disks(devices: dict[str, _BlockDevice], storage: LocalStorage) -> dict[str, str]:
    """Return the disk of each volume group whose volumes all lie on one device."""
    below: dict[str, set[str]] = {}
    for device in devices.values():
        if device.volume:
            found = below.setdefault(volume_group(device.volume), set())
            found.update(_DEVICE + name for name in _physical(device, devices, set()))
    single = {group: found.pop() for group, found in below.items() if len(found) == 1}
    disks = {group: storage.partition_disk.get(path, path) for group, path in single.items()}
    return {group: disk for group, disk in disks.items() if disk in storage.disk_number}


def _physical(
    device: _BlockDevice, devices: dict[str, _BlockDevice], seen: set[str]
) -> Iterator[str]:
    """Yield the devices at the bottom of a stack of mapped devices (thin pools, encryption)."""
    for name in device.slaves:
        if name not in seen:
            seen.add(name)
            if name in devices and devices[name].slaves:
                yield from _physical(devices[name], devices, seen)
            else:
                yield name


def _mount_sources(mountinfo: Path, devices: Iterable[_BlockDevice]) -> dict[str, str]:
    """Return the device of each mount point; the kernel's number knows better than the text,
    which may be /dev/root or a symbolic link."""
    paths = {}
    for device in devices:
        paths[device.number] = _MAPPER + device.volume if device.volume else _DEVICE + device.name
        paths.update({number: _DEVICE + name for name, number in device.partitions.items()})
    try:
        mounts = parse_file(mountinfo, parse_mountinfo)
    except KernelFileError:
        return {}
    return {mount.target: paths.get(mount.number, mount.source) for mount in mounts}


def _text(path: Path) -> str:
    """Return a file's line; "" when it cannot be read."""
    try:
        return parse_file(path, parse_text)
    except KernelFileError:
        return ""
