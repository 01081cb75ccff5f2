"""Volumes that are there for claims: for a node the smallest ones that fit. The plain form.

Source: Kubernetes, component-helpers volume.FindMatchingVolume; volumebinding findMatchingVolumes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import ClusterNode, in_time
from koord_scheduler.plugin.storage import (
    AVAILABLE,
    Claim,
    Volume,
    node_matches_terms,
)

Places = NDArray[np.intp]
"""For each node the place of a volume in a list; its length: none. Shape (nodes,)."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Volumes that claims could be bound to, the smallest first."""

    volumes: tuple[Volume, ...]
    claims: tuple[tuple[Claim, tuple[int, ...]], ...]  # with the places of theirs


def candidates_for(claims: Iterable[Claim], volumes: Mapping[str, Sequence[Volume]]) -> Candidates:
    """What could be bound to claims. volumes are by class. The claim that wants least is first."""
    ordered = sorted(claims, key=lambda claim: claim.request or 0)
    every = sorted(
        (one for name in {claim.storage_class for claim in ordered} for one in volumes[name]),
        key=lambda volume: (volume.capacity, volume.name),
    )
    found = []
    for claim in in_time(ordered):
        places = tuple(at for at, volume in enumerate(every) if is_usable(volume, claim))
        kept = tuple(at for at in places if every[at].claim is not None)  # for this very claim
        found.append((claim, kept[:1] or places))
    return Candidates(tuple(every), tuple(found))


def match_on(found: Candidates, node: ClusterNode) -> list[int]:
    """The places of the volumes for each claim on one node; len(volumes): there is none."""
    taken: list[int] = []
    nothing = len(found.volumes)
    for _, places in in_time(found.claims):
        usable = (at for at in places if at not in taken and reaches(found.volumes[at], node))
        taken.append(next(usable, nothing))
    return taken


def reaches(volume: Volume, node: ClusterNode) -> bool:
    """Whether a node can reach a volume."""
    return volume.node_terms is None or node_matches_terms(volume.node_terms, node)


def is_usable(volume: Volume, claim: Claim) -> bool:
    """Whether a volume would do for a claim, wherever it can be reached."""
    kept = volume.claim is not None
    if kept and (volume.claim is None or not volume.claim.means(claim)):
        return False
    if volume.storage_class != claim.storage_class or volume.deleting:
        return False
    if volume.capacity < (claim.request or 0) or volume.is_block != claim.is_block:
        return False
    if volume.attributes_class != claim.attributes_class:
        return False
    if kept:
        return True
    if volume.phase != AVAILABLE or not set(claim.access_modes) <= set(volume.access_modes):
        return False
    return claim.selector is None or all(one.matches(volume.labels) for one in claim.selector)
