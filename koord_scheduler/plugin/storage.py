"""Storage for plugins: facts, kinds and rules."""

from koord.cluster.columns import FrozenShards
from koord.cluster.facts import NodeTerm
from koord.cluster.predicates.nodes import matches_terms, node_matches_terms
from koord.cluster.storage import (
    AVAILABLE,
    LOST,
    READ_WRITE_ONCE_POD,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    NodeDriver,
    StorageCapacity,
    StorageClass,
    StorageObjects,
    Volume,
    VolumeAttachment,
)
from koord.cluster.storage_kinds import (
    BOUND_BY_CONTROLLER,
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    SELECTED_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
)
from koord.kube.client import PERSISTENT_CLAIMS, PERSISTENT_VOLUMES
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
    "CSI_DRIVER",
    "CSI_NODE",
    "LOST",
    "PERSISTENT_CLAIMS",
    "PERSISTENT_VOLUMES",
    "READ_WRITE_ONCE_POD",
    "SELECTED_NODE",
    "STORAGE_CAPACITY",
    "STORAGE_CLASS",
    "VOLUME",
    "VOLUME_ATTACHMENT",
    "Claim",
    "ClaimReference",
    "CsiDriver",
    "CsiNode",
    "FrozenCapacities",
    "FrozenVolumes",
    "NodeDriver",
    "NodeTerm",
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
    "matches_terms",
    "missing",
    "named_claims",
    "node_matches_terms",
    "uses_claim",
    "volumes_of",
    "volumes_on",
]
