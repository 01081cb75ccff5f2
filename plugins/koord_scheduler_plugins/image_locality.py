"""ImageLocality: nodes that have the images of a pod already are better.

The size of an image counts by how many nodes have it: so not all pods go to the first one.

Source: Kubernetes, plugins/imagelocality/image_locality.go.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    CycleState,
    Handle,
    NodeInfo,
    PreScorePlugin,
    ScorePlugin,
    Status,
    View,
    in_time,
)
from koord_scheduler.plugin.vector import Mask, Scores, VectorScorePlugin

_MIB = 1 << 20
MIN_THRESHOLD = 23 * _MIB  # bytes; a sum below it is worth nothing
MAX_CONTAINER_THRESHOLD = 1000 * _MIB  # bytes for each container; more is worth no more
_MAX_CACHED = 64  # columns of scores; 40 KB each at 5,000 nodes


class ImageLocality(PreScorePlugin, ScorePlugin, VectorScorePlugin):
    """Scores nodes by the size of the images that need not be pulled."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._known: dict[tuple[str, ...], Scores] = {}  # by images
        self._images: object = None  # of the nodes, when these scores were computed

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Where no node has any of them, all would have the score 0."""
        images = nodes.images
        for name in images_of(pod):
            if images.sizes(name) is not None:
                return None
        return Status.skip()

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return nodes.images

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        """Return the image table: the score depends on which other nodes have an image."""
        return nodes.images

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        images = images_of(pod)
        there = {name: one.size for one in node.node.images.images for name in one.names}
        nodes = node.view
        total = sum(
            int(there[name] * (nodes.images.spread(name) / len(nodes)))
            for name in images
            if name in there
        )
        most = MAX_CONTAINER_THRESHOLD * len(images)
        return (
            MAX_NODE_SCORE
            * (min(max(total, MIN_THRESHOLD), most) - MIN_THRESHOLD)
            // (most - MIN_THRESHOLD)
        )

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        images = tuple(images_of(pod))
        if self._images is not nodes.images or len(self._known) >= _MAX_CACHED:
            self._images, self._known = nodes.images, {}
        found = self._known.get(images)
        if found is None:
            found = self._known[images] = self._computed(images, nodes)
        return found

    def _computed(self, images: tuple[str, ...], nodes: View) -> Scores:
        total = np.zeros(len(nodes), np.int64)
        for name in in_time(images):
            sizes = nodes.images.sizes(name)
            if sizes is not None:
                total += (sizes * (nodes.images.spread(name) / len(nodes))).astype(np.int64)
        most = MAX_CONTAINER_THRESHOLD * len(images)
        scores: Scores = (
            MAX_NODE_SCORE
            * (np.clip(total, MIN_THRESHOLD, most) - MIN_THRESHOLD)
            // (most - MIN_THRESHOLD)
        )
        return scores


def images_of(pod: ClusterPod) -> list[str]:
    """The images of all containers and volumes, as nodes report them: with a tag."""
    return [_tagged(name) for name in (*pod.spec.images, *pod.spec.other_images)]


@lru_cache(maxsize=4096)
def _tagged(name: str) -> str:
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
