"""Storage for plugins of koord-scheduler: facts, kinds and rules."""

from koord.cluster.columns import FrozenShards
from koord.cluster.storage import (
    AVAILABLE,
    BOUND_BY_CONTROLLER,
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    LOST,
    READ_WRITE_ONCE_POD,
    SELECTED_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    StorageCapacity,
    StorageClass,
    StorageObjects,
    Volume,
    VolumeAttachment,
)
from koord_scheduler.rules.volumes import (
    VolumePods,
    Volumes,
    VolumeUse,
    is_ephemeral,
    limit_on,
    missing,
    named_claims,
    uses_claim,
    volumes_of,
    volumes_on,
)

FrozenCapacities = FrozenShards[StorageCapacity]
"""Capacities at one moment."""
FrozenVolumes = FrozenShards[Volume]
"""The volumes of a view."""

__all__ = [
    "AVAILABLE",
    "BOUND_BY_CONTROLLER",
    "CLAIM",
    "CSI_DRIVER",  # a kind for handle.services.changes
    "CSI_NODE",  # a kind for handle.services.changes
    "LOST",
    "READ_WRITE_ONCE_POD",
    "SELECTED_NODE",
    "STORAGE_CAPACITY",  # a kind for handle.services.changes
    "STORAGE_CLASS",  # a kind for handle.services.changes
    "VOLUME",
    "VOLUME_ATTACHMENT",  # a kind for handle.services.changes
    "Claim",
    "ClaimReference",
    "CsiDriver",
    "CsiNode",
    "FrozenCapacities",
    "FrozenVolumes",
    "StorageCapacity",
    "StorageClass",
    "StorageObjects",
    "Volume",
    "VolumeAttachment",
    "VolumePods",
    "VolumeUse",
    "Volumes",
    "is_ephemeral",
    "limit_on",
    "missing",
    "named_claims",
    "uses_claim",
    "volumes_of",
    "volumes_on",
]
