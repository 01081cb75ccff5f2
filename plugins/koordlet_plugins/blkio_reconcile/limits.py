"""Blocks of annotation and NodeSLO: checked, with the devices of volumes, as kernel values."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from koord.api.annotations import json_annotation, place
from koord.api.fields import Fields
from koord.api.gojson import shape_of, wire
from koord.api.pod import Pod
from koord.api.qosstrategy import Block, BlockType, IOConfig
from koord.plugin import InvalidObject, KoordError
from koordlet.plugin import Client, resources
from koordlet.plugin.kernel import LocalStorage, Resource

_MOUNT = re.compile(r"/pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount$")

Mounts = Mapping[str, str]  # name of a persistent or inline volume -> device, of one pod
ClaimKey = tuple[str, str]  # UID of a pod, name of a claim in its namespace


def mounts_by_pod(storage: LocalStorage) -> dict[str, dict[str, str]]:
    """Return the devices of mounted CSI volumes by the pod's UID and the volume's name."""
    found: dict[str, dict[str, str]] = {}
    for target, device in storage.mount_source.items():
        if target.endswith("/mount") and (match := _MOUNT.search(target)):
            found.setdefault(match[1], {})[match[2]] = device
    return found


class AmbiguousClaim(NamedTuple):
    """A claim of a pod that its mounts alone do not distinguish from others."""

    key: ClaimKey
    namespace: str


def ambiguous_claims(pod: Pod, blocks: Iterable[Block], mounts: Mounts) -> Iterator[AmbiguousClaim]:
    """Return the claims whose volume names have to be asked for.

    With one claim and one mounted volume that is not inline there is nothing to ask.
    """
    if len(_persistent(pod)) <= 1:
        return
    for block in blocks:
        claim = pod.claims.get(block.name, "")
        if block.type is BlockType.POD_VOLUME and claim and _names(pod, mounts):
            yield AmbiguousClaim((pod.uid, claim), pod.namespace)


class DeviceLookup(NamedTuple):
    """All that leads from names to devices."""

    storage: LocalStorage
    mounts: Mapping[str, Mounts]  # by the pod's UID
    volumes: Mapping[ClaimKey, str]  # name of the persistent volume that a claim is bound to

    def number_of(self, block: Block, pod: Pod | None, where: str) -> str:
        """Return the device of a block as "<major>:<minor>".

        Raises:
            InvalidObject: the node has no such device, or it is not known for now.
        """
        if block.type is BlockType.DEVICE:
            found = self._number(block.name)
            wanted = "a block device of this node, such as /dev/sda"
        elif block.type is BlockType.VOLUME_GROUP:
            found = self.storage.disk_number.get(self.storage.vg_disk.get(block.name, ""), "")
            wanted = "an LVM volume group of this node that is on one disk"
        elif pod is None:
            found, wanted = "", "a device or volumegroup: only pods have volumes"
        else:
            found = self._number(self._volume(block.name, pod))
            wanted = "a volume of the pod that a CSI driver has mounted from a device of this node"
        if not found:
            raise InvalidObject(where, wanted=wanted, found=block.name)
        return found

    def _number(self, device: str) -> str:
        """The disk of a device where it has one, else the device: a stripe over several disks."""
        storage = self.storage
        disk = storage.partition_disk.get(device, device)
        disk = storage.vg_disk.get(storage.lv_vg.get(disk, ""), disk)
        return storage.disk_number.get(disk) or storage.whole_number.get(disk, "")

    def _volume(self, name: str, pod: Pod) -> str:
        """The device of a pod's volume, "" when it is not known."""
        mounts = self.mounts.get(pod.uid, {})
        claim = pod.claims.get(name)
        if claim is None:
            return ""
        if not claim:
            return mounts.get(name, "")
        volume = self.volumes.get((pod.uid, claim), "")
        if not volume and len(_persistent(pod)) == 1 and len(names := _names(pod, mounts)) == 1:
            [volume] = names
        return mounts.get(volume, "")


def _persistent(pod: Pod) -> set[str]:
    return {claim for claim in pod.claims.values() if claim}


def _names(pod: Pod, mounts: Mounts) -> set[str]:
    """The mounted volumes that are not inline."""
    return {name for name in mounts if pod.claims.get(name) != ""}


class Resolved(NamedTuple):
    """Settings by device, "<major>:<minor>"; problem: of the first block that is left out."""

    devices: dict[str, IOConfig]
    problem: InvalidObject | None = None


def resolve(blocks: Iterable[Block], lookup: DeviceLookup, pod: Pod | None, where: str) -> Resolved:
    """Return the settings of the blocks whose devices are known, each device once."""
    devices: dict[str, IOConfig] = {}
    names: dict[str, str] = {}
    problem: InvalidObject | None = None
    for block in blocks:
        place = f"{where}, block {block.name}"
        try:
            number = lookup.number_of(block, pod, f"{place}: name")
            _check(block, place, number, names.get(number))
        except InvalidObject as err:
            problem = problem or err
        else:
            devices[number], names[number] = block.io, block.name
    return Resolved(devices, problem)


def _check(block: Block, place: str, number: str, other: str | None) -> None:
    """other: the block that names the same device; None: there is none."""
    if other is not None:
        found = f"{block.name}, which is {number} as {other} is"
        wanted = "a device that no other block names"
        raise InvalidObject(f"{place}: name", wanted=wanted, found=found)
    if has_half_a_model(block.io):
        wanted = "all six model fields, from 1 on, beside enableUserModel"
        raise InvalidObject(f"{place}: ioCfg", wanted=wanted, found="some of them")


RETRY = 30.0  # seconds after which a claim that could not be read, or is not bound, is asked again


class VolumeNames:
    """Remembers the volume of each claim: a claim that is bound stays so."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: dict[ClaimKey, float] = {}  # when, by the monotonic clock
        self.names: dict[ClaimKey, str] = {}
        self.problem = ""  # of the latest request that failed; "" for none

    async def look_up(self, wanted: Iterable[AmbiguousClaim], now: float) -> None:
        """Ask for the volumes of these claims, and forget all others."""
        claims = {one.key: one for one in wanted}
        self._asked = {key: at for key, at in self._asked.items() if key in claims}
        if self.names.keys() - claims.keys():
            self.names = {key: name for key, name in self.names.items() if key in claims}
        if not claims:
            self.problem = ""
        for key, one in claims.items():
            if key not in self.names and now - self._asked.get(key, float("-inf")) >= RETRY:
                self._asked[key] = now
                await self._ask(one)

    async def _ask(self, one: AmbiguousClaim) -> None:
        claim = quote(one.key[1], safe="")
        path = f"/api/v1/namespaces/{quote(one.namespace, safe='')}/persistentvolumeclaims/{claim}"
        try:
            found = await self._client.get(path)
            name = Fields(found, path).nested("spec").text("volumeName")
        except KoordError as err:
            self.problem = f"volumes of claims (the component volume-claims grants that): {err}"
            return
        self.problem = ""
        if name:
            self.names = self.names | {one.key: name}


Devices = Mapping[str, IOConfig]  # settings by device, "<major>:<minor>"

V1_THROTTLES: tuple[tuple[Resource[dict[str, int]], str], ...] = (
    (resources.BLKIO_READ_IOPS, "read_iops"),
    (resources.BLKIO_READ_BPS, "read_bps"),
    (resources.BLKIO_WRITE_IOPS, "write_iops"),
    (resources.BLKIO_WRITE_BPS, "write_bps"),
)
V2_THROTTLES = {
    "rbps": "read_bps",
    "wbps": "write_bps",
    "riops": "read_iops",
    "wiops": "write_iops",
}
WEIGHTS = (  # the first that the kernel has
    resources.BLKIO_COST_WEIGHT,
    resources.IO_DEVICE_WEIGHT,
    resources.BFQ_DEVICE_WEIGHT,
)
LATENCY, PERCENT = 3000, 95  # defaults of iocost's targets: us, percent
_MODEL = {
    "rbps": "model_read_bps",
    "rseqiops": "model_read_seq_iops",
    "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps",
    "wseqiops": "model_write_seq_iops",
    "wrandiops": "model_write_rand_iops",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """A value for one file of a cgroup, and its reason."""

    resource: Resource[Any]
    value: Mapping[str, Any]  # by device
    reason: str


def throttles(devices: Devices, version: int) -> Iterator[Limit]:
    """Return the limits in bytes and operations per second; 0 is none, as if it were not set."""
    if version == 2:
        named = _by_device(
            devices,
            lambda io: {
                name: most for name, key in V2_THROTTLES.items() if (most := getattr(io, key))
            },
        )
        if named:
            yield Limit(resources.IO_MAX, named, "limits by device as they are set")
        return
    for resource, key in V1_THROTTLES:
        numbers = {device: most for device, io in devices.items() if (most := getattr(io, key))}
        if numbers:
            yield Limit(resource, numbers, "limits by device as they are set")


def weights(devices: Devices, resource: Resource[dict[str, int]]) -> Iterator[Limit]:
    """Return the weights; 100 is that of a group without one."""
    numbers = _by_device(devices, lambda io: io.io_weight_percent or 0)
    if numbers:
        yield Limit(resource, numbers, "ioWeightPercent by device as it is set")


def latencies(devices: Devices) -> Iterator[Limit]:
    """Return the latency targets of io.latency, which knows one for reads and writes together."""

    def target(io: IOConfig) -> dict[str, int]:
        least = min((one for one in (io.read_latency, io.write_latency) if one), default=0)
        return {"target": least} if least else {}

    targets = _by_device(devices, target)
    if targets:
        yield Limit(resources.IO_LATENCY, targets, "the lower of readLatency and writeLatency")


def costs(devices: Devices) -> Iterator[Limit]:
    """Return the settings of iocost in the root cgroup: its targets, and the cost model."""
    if devices:
        targets = {device: _targets(io) for device, io in devices.items()}
        yield Limit(resources.BLKIO_COST_QOS, targets, "latency targets of iocost as they are set")
    models = _by_device(devices, _model)
    if models:
        yield Limit(resources.BLKIO_COST_MODEL, models, "cost model of the device as it is set")


def has_half_a_model(io: IOConfig) -> bool:
    """Whether a cost model is wanted, and some of its numbers are missing."""
    return bool(io.enable_user_model) and not _model(io)


def tighter(one: Devices, other: Devices) -> dict[str, IOConfig]:
    """Return the lower of the throttles of two groups that both hold, and nothing else."""
    keys = [key for _, key in V1_THROTTLES]
    return {
        device: IOConfig(
            **{
                key: min(found)
                for key in keys
                if (
                    found := [
                        most
                        for io in (one.get(device), other.get(device))
                        if io and (most := getattr(io, key))
                    ]
                )
            }
        )
        for device in one.keys() | other.keys()
    }


def _targets(io: IOConfig) -> dict[str, str]:
    def number(value: int | None, default: int) -> int:
        return default if value is None else value

    return {
        "enable": "1",
        "ctrl": "user",
        "rpct": f"{number(io.read_latency_percent, PERCENT)}.00",
        "rlat": str(number(io.read_latency, LATENCY)),
        "wpct": f"{number(io.write_latency_percent, PERCENT)}.00",
        "wlat": str(number(io.write_latency, LATENCY)),
    }


def _model(io: IOConfig) -> dict[str, str]:
    """A model needs all of its six numbers; without one of them the kernel keeps its own."""
    numbers = {name: getattr(io, key) for name, key in _MODEL.items()}
    if not io.enable_user_model or not all(numbers.values()):
        return {}
    return {"ctrl": "user"} | {name: str(number) for name, number in numbers.items()}


def _by_device(devices: Devices, of: Callable[[IOConfig], Any]) -> dict[str, Any]:
    return {device: value for device, io in sorted(devices.items()) if (value := of(io))}


ANNOTATION = "koordinator.sh/blkioQOS"
MAX_BLOCKS = 64
MAX_NAME = 253  # characters
_UINT32_MAX = 2**32 - 2  # the kernel keeps 32 bits of operations per second
_MAX_VALUES = {"read_iops": _UINT32_MAX, "write_iops": _UINT32_MAX}
_MAX_LATENCY = 60_000_000  # us
_KEYS = {"read_iops": "readIOPS", "write_iops": "writeIOPS"}
_LATENCIES = {"read_latency": "readLatency", "write_latency": "writeLatency"}


@dataclass(frozen=True, slots=True)
class _Annotation:
    blocks: tuple[Block, ...] = wire("blocks", ())


_SHAPE = shape_of(_Annotation)


def blocks_of_pod(pod: Pod) -> tuple[Block, ...]:
    """Return the blocks of a pod's annotation; none without it, and where it is empty.

    Raises:
        InvalidObject: it is malformed, or a value in it cannot be used.
    """
    if not pod.annotations.get(ANNOTATION):
        return ()
    found = _SHAPE.load(json_annotation(pod, ANNOTATION, _SHAPE))
    return checked(found.blocks, f"{place(pod, ANNOTATION)}.blocks")


def checked(blocks: tuple[Block, ...], where: str) -> tuple[Block, ...]:
    """Return blocks of which each type and name is there once: later fields come first.

    Raises:
        InvalidObject: there are too many, or one of them cannot be used.
    """
    if len(blocks) > MAX_BLOCKS:
        raise InvalidObject(where, wanted=f"{MAX_BLOCKS} blocks at most", found=len(blocks))
    merged: dict[tuple[BlockType | None, str], Block] = {}
    for index, block in enumerate(blocks):
        _check_numbers(block, f"{where}[{index}]")
        key = (block.type, block.name)
        before = merged.get(key)
        merged[key] = block if before is None else replace(block, io=_over(before.io, block.io))
    return tuple(merged.values())


def _check_numbers(block: Block, where: str) -> None:
    if block.type is None:
        known = ", ".join(BlockType)
        raise InvalidObject(f"{where}.type", wanted=f"one of {known}", found="another, or none")
    name = block.name
    if not 0 < len(name) <= MAX_NAME or not (name.isascii() and name.isprintable()):
        wanted = f"1 to {MAX_NAME} printable characters"
        raise InvalidObject(f"{where}.name", wanted=wanted, found=name)
    for attribute, key in (_KEYS | _LATENCIES).items():
        value = getattr(block.io, attribute)
        most = _MAX_VALUES.get(attribute, _MAX_LATENCY)
        if value is not None and not 0 <= value <= most:
            raise InvalidObject(f"{where}.ioCfg.{key}", wanted=f"0 to {most}", found=value)


def _over(before: IOConfig, after: IOConfig) -> IOConfig:
    given = {
        field.name: value
        for field in fields(after)
        if (value := getattr(after, field.name)) is not None
    }
    return replace(before, **given)
