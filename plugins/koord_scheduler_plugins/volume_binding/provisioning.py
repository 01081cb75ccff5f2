"""Nodes for which a volume can be made.

Source: Kubernetes, volumebinding checkVolumeProvisions, hasEnoughCapacity.
"""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import ClusterNode, View
from koord_scheduler.plugin.storage import (
    Claim,
    NodeTerm,
    StorageCapacity,
    StorageObjects,
    matches_terms,
    node_matches_terms,
)
from koord_scheduler_plugins.volume_binding.capacitytable import CapacityTables


class Obstacle(IntEnum):
    """Why a node is not for a claim that is not bound."""

    NONE = 0
    NO_VOLUME = 1
    NO_SPACE = 2


Obstacles = NDArray[np.int8]
"""Values of Obstacle; shape (nodes,)."""


def obstacle_on(claim: Claim, storage: StorageObjects, node: ClusterNode) -> Obstacle:
    """Why no volume can be made for a claim on a node."""
    found = storage.classes.get(claim.storage_class)
    if found is None or not found.provisions:
        return Obstacle.NO_VOLUME
    if found.topologies is not None and not node_matches_terms(found.topologies, node):
        return Obstacle.NO_VOLUME
    if not _is_tracked(claim, storage) or any(
        node_matches_terms((NodeTerm(one.nodes or ()),), node)
        for one in _sufficient(claim, storage)
    ):
        return Obstacle.NONE
    return Obstacle.NO_SPACE


def obstacles(
    claim: Claim, storage: StorageObjects, capacities: CapacityTables, nodes: View
) -> Obstacles:
    """The same for all nodes."""
    found = storage.classes.get(claim.storage_class)
    if found is None or not found.provisions:
        return np.full(len(nodes), Obstacle.NO_VOLUME, np.int8)
    codes = np.zeros(len(nodes), np.int8)
    if _is_tracked(claim, storage):
        name, size = claim.storage_class, claim.request or 0
        codes[~capacities.has_space(storage, name, size, nodes)] = Obstacle.NO_SPACE
    if found.topologies is not None:
        codes[~matches_terms(found.topologies, nodes)] = Obstacle.NO_VOLUME
    return codes


def _is_tracked(claim: Claim, storage: StorageObjects) -> bool:
    """Whether a driver reports what it has left for such a claim."""
    if claim.request is None:
        return False
    driver = storage.drivers.get(storage.classes[claim.storage_class].provisioner)
    return driver is not None and driver.tracks_capacity


def _sufficient(claim: Claim, storage: StorageObjects) -> Iterator[StorageCapacity]:
    """What is large enough, and can be reached from some nodes."""
    for one in storage.capacities_of(claim.storage_class):
        limit = one.limit
        if one.nodes is not None and limit is not None and limit >= (claim.request or 0):
            yield one
