"""The devices behind the names of blocks: matched against what the kernel lists, never opened."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from koord.api.fields import Fields
from koord.api.pod import Pod
from koord.api.qosstrategy import Block, BlockType, IOConfig
from koord.plugin import InvalidObject, KoordError
from koordlet.plugin import Client
from koordlet.plugin.kernel import LocalStorage
from koordlet_plugins.blkio_reconcile.limits import has_half_a_model

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
