"""What plugins may use of storage: facts, kinds and rules."""

from koord.cluster.columns import FrozenShards
from koord.cluster.facts import NodeTerm
from koord.cluster.predicates.nodes import matches_terms, node_matches_terms
from koord.cluster.storage.facts import (
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
    Volume,
    VolumeAttachment,
)
from koord.cluster.storage.kinds import (
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
from koord.cluster.storage.objects import StorageObjects
from koord.kube.resource import PERSISTENT_CLAIMS, PERSISTENT_VOLUMES
from koord_scheduler.rules.podclaims import is_ephemeral, missing, named_claims, uses_claim
from koord_scheduler.rules.volumepods import VolumePods
from koord_scheduler.rules.volumeuse import (
    Volumes,
    VolumeUse,
    limit_on,
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
