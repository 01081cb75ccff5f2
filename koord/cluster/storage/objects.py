"""Storage objects as they are known, found by what decisions ask for."""

from collections.abc import Collection, Iterator
from typing import TypeVar

from koord.cluster.columns import Shards
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
    """What is beside claims and volumes, and the volumes of a class. Belongs to one thread."""

    def __init__(self) -> None:
        self.classes_version = 0  # grows with each change of the classes
        self.nodes_version = 0  # of the nodes
        self.attachments_version = 0
        self.classes: dict[str, StorageClass] = {}
        self.nodes: dict[str, CsiNode] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self.capacities: Shards[StorageCapacity] = Shards()  # by namespace/name
        self.attachments: dict[str, VolumeAttachment] = {}
        self._moved: dict[str, int] = {}  # by node: version of its last change
        self._attached: dict[str, dict[str, VolumeAttachment]] = {}  # by node, by name
        self._volumes: dict[str, dict[str, Volume]] = {}  # by class, by name

    def volumes_of(self, storage_class: str) -> Collection[Volume]:
        """The volumes of a class; of "" those that have none."""
        return self._volumes.get(storage_class, {}).values()

    def attached_to(self, node: str) -> Collection[VolumeAttachment]:
        """Attachments to a node."""
        return self._attached.get(node, {}).values()

    def attached_since(self, version: int) -> list[str]:
        """Nodes whose attachments have changed since a version of them."""
        if version == self.attachments_version:
            return []
        return [node for node, changed in self._moved.items() if changed > version]

    def capacities_of(self, storage_class: str) -> Iterator[StorageCapacity]:
        """What is left of a class."""
        found = map(self.capacities.get, self.capacities.keys())
        return (one for one in found if one is not None and one.storage_class == storage_class)

    def put_volume(self, old: Volume | None, volume: Volume) -> None:
        """Take over a volume; old is what it was before."""
        self.drop_volume(old)
        self._volumes.setdefault(volume.storage_class, {})[volume.name] = volume

    def drop_volume(self, old: Volume | None) -> None:
        """Forget a volume; None is none."""
        if old is not None:
            _drop(self._volumes, old.storage_class, old.name)

    def put_class(self, storage_class: StorageClass) -> None:
        """Take over a class."""
        self.classes[storage_class.name] = storage_class
        self.classes_version += 1

    def drop_class(self, name: str) -> None:
        """Forget a class; one that is not known is none the less forgotten."""
        self.classes.pop(name, None)
        self.classes_version += 1

    def put_node(self, node: CsiNode) -> None:
        """Take over the drivers of a node."""
        self.nodes[node.name] = node
        self.nodes_version += 1

    def drop_node(self, name: str) -> None:
        """Forget the drivers of a node; one that is not known is none the less forgotten."""
        self.nodes.pop(name, None)
        self.nodes_version += 1

    def put_attachment(self, attachment: VolumeAttachment) -> None:
        """Take over an attachment."""
        self.drop_attachment(attachment.name)
        self.attachments[attachment.name] = attachment
        self._attached.setdefault(attachment.node, {})[attachment.name] = attachment
        self._move(attachment.node)

    def drop_attachment(self, name: str) -> None:
        """Forget an attachment; one that is not known is none the less forgotten."""
        old = self.attachments.pop(name, None)
        if old is not None:
            _drop(self._attached, old.node, name)
            self._move(old.node)

    def _move(self, node: str) -> None:
        self.attachments_version += 1
        self._moved[node] = self.attachments_version


def _drop(table: dict[str, dict[str, T]], group: str, name: str) -> None:
    """Take an object out of its group, and the group away when it is empty."""
    members = table.get(group, {})
    members.pop(name, None)
    if not members:
        table.pop(group, None)
