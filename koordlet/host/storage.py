"""Local storage: disks, partitions, LVM volumes and mounts, from sysfs and mountinfo."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, parse_file
from koordlet.host.procfiles import parse_text, shown

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class MountInfo(NamedTuple):
    """One line of mountinfo."""

    target: str  # mount point
    source: str  # device or whatever the file system calls its source
    number: str  # "major:minor" of the file system
    root: str  # directory of the file system that is seen at target
    kind: str  # file system type
    options: str  # of the file system, comma separated


def parse_mountinfo(data: bytes) -> list[MountInfo]:
    """Return the mounts of /proc/<pid>/mountinfo in their order: later ones hide earlier ones.

    Raises:
        ValueError: a line does not have the fields of a mount.

    Source: kernel docs, filesystems/proc, section 3.5.
    """
    return [_parse_mount(line) for line in data.splitlines()]


def _parse_mount(line: bytes) -> MountInfo:
    before, dash, after = line.partition(b" - ")
    place, file_system = before.split(), after.split()
    if not dash or len(place) < 6 or len(file_system) < 2:
        raise ValueError(f"wanted a mount, found {shown(line)}")
    _, _, number, root, target, *_ = place
    # A source may be empty: then the kernel prints two blanks, and split() sees one field less.
    kind, *source, options = file_system
    return MountInfo(
        target=_unescape(target),
        source=_unescape(source[0]) if source else "",
        number=_unescape(number),
        root=_unescape(root),
        kind=_unescape(kind),
        options=_unescape(options),
    )


def _unescape(field: bytes) -> str:
    """Undo the octal escapes of blanks and backslashes."""
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field)
    return plain.decode(errors="surrogateescape")


_DEVICE = "/dev/"
_MAPPER = "/dev/mapper/"
_NOT_DISKS = ("dm-", "loop", "md", "ram", "sr")
_OPTICAL = "5"  # SCSI peripheral type
_SEPARATOR = re.compile(r"(?<!-)(--)*-(?!-)")


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """The mapping from mount points to disks. Devices are paths like /dev/sda, numbers "8:0"."""

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
        number = _read_text(directory / "dev")
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
        or _read_text(directory / "device/type") == _OPTICAL
        or _read_text(directory / "hidden") == "1"
    )


def _logical_volume(directory: Path) -> str:
    is_lvm = _read_text(directory / "dm/uuid").startswith("LVM-")
    return _read_text(directory / "dm/name") if is_lvm else ""


def _partitions(directory: Path) -> dict[str, str]:
    names = [name for name in names_in(directory) if name.startswith(directory.name)]
    return {
        name: _read_text(directory / name / "dev")
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


def _read_text(path: Path) -> str:
    """Return a file's line; "" when it cannot be read."""
    try:
        return parse_file(path, parse_text)
    except KernelFileError:
        return ""
