"""What plugins may use of storage: facts, kinds and rules."""

from koord.cluster.storage.facts import (
    READ_WRITE_ONCE_POD,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    NodeDriver,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.cluster.storage.kinds import (
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
)
from koord.cluster.storage.objects import StorageObjects
from koord_scheduler.rules.podclaims import is_ephemeral, missing, named_claims, uses_claim
from koord_scheduler.rules.volumepods import VolumePods

__all__ = [
    "CLAIM",
    "CSI_DRIVER",
    "CSI_NODE",
    "READ_WRITE_ONCE_POD",
    "STORAGE_CAPACITY",
    "STORAGE_CLASS",
    "VOLUME",
    "VOLUME_ATTACHMENT",
    "Claim",
    "ClaimReference",
    "CsiDriver",
    "CsiNode",
    "NodeDriver",
    "StorageCapacity",
    "StorageClass",
    "StorageObjects",
    "Volume",
    "VolumeAttachment",
    "VolumePods",
    "is_ephemeral",
    "missing",
    "named_claims",
    "uses_claim",
]
