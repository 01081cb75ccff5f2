"""Storage objects as they are known, found by what decisions ask for."""

from collections.abc import Collection, Iterator
from typing import TypeVar

from koord.cluster.storage.facts import (
    CsiDriver,
    CsiNode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)

T = TypeVar("T")


class StorageObjects:
    """What is beside claims and volumes, and the volumes of a class. Belongs to one thread.

    version grows with each change of what is in the tables, but the attachments'.
    """

    def __init__(self) -> None:
        self.version = 0
        self.classes: dict[str, StorageClass] = {}
        self.nodes: dict[str, CsiNode] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self.capacities: dict[str, StorageCapacity] = {}  # by namespace/name
        self.attachments: dict[str, VolumeAttachment] = {}
        self._attached: dict[str, dict[str, VolumeAttachment]] = {}  # by node, by name
        self._volumes: dict[str, dict[str, Volume]] = {}  # by class, by name

    def volumes_of(self, storage_class: str) -> Collection[Volume]:
        """The volumes of a class; of "" those that have none."""
        return self._volumes.get(storage_class, {}).values()

    def attached_to(self, node: str) -> Collection[VolumeAttachment]:
        """Attachments to a node."""
        return self._attached.get(node, {}).values()

    def capacities_of(self, storage_class: str) -> Iterator[StorageCapacity]:
        """What is left of a class."""
        return (one for one in self.capacities.values() if one.storage_class == storage_class)

    def put_volume(self, old: Volume | None, volume: Volume) -> None:
        """Take over a volume; old is what it was before."""
        self.drop_volume(old)
        self._volumes.setdefault(volume.storage_class, {})[volume.name] = volume

    def drop_volume(self, old: Volume | None) -> None:
        """Forget a volume; None is none."""
        if old is not None:
            _drop(self._volumes, old.storage_class, old.name)

    def put_attachment(self, attachment: VolumeAttachment) -> None:
        """Take over an attachment."""
        self.drop_attachment(attachment.name)
        self.attachments[attachment.name] = attachment
        self._attached.setdefault(attachment.node, {})[attachment.name] = attachment

    def drop_attachment(self, name: str) -> None:
        """Forget an attachment; one that is not known is none the less forgotten."""
        old = self.attachments.pop(name, None)
        if old is not None:
            _drop(self._attached, old.node, name)


def _drop(table: dict[str, dict[str, T]], group: str, name: str) -> None:
    """Take an object out of its group, and the group away when it is empty."""
    members = table.get(group, {})
    members.pop(name, None)
    if not members:
        table.pop(group, None)
