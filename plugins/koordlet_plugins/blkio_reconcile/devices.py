"""The device behind a block's name: matched against what the kernel lists, never opened. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from koord.api.pods.pod import Pod
from koord.api.slo.resourceqos import Block, BlockType
from koordlet.plugin import InvalidObject
from koordlet.plugin.storage import LocalStorage

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


class Unclear(NamedTuple):
    """A claim of a pod that its mounts alone do not tell apart from others."""

    key: ClaimKey
    namespace: str


def unclear_claims(pod: Pod, blocks: Iterable[Block], mounts: Mounts) -> Iterator[Unclear]:
    """Return the claims whose volume names have to be asked for.

    With one claim and one mounted volume that is not inline there is nothing to ask.
    """
    if len(_persistent(pod)) <= 1:
        return
    for block in blocks:
        claim = pod.claims.get(block.name, "")
        if block.type is BlockType.POD_VOLUME and claim and _names(pod, mounts):
            yield Unclear((pod.uid, claim), pod.namespace)


class Places(NamedTuple):
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
