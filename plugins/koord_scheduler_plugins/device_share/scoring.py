"""Scores of devices and of nodes by how much of their devices is requested.

Source: Koordinator, pkg/scheduler/plugins/deviceshare (scoring); docs/differences.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_scheduler_plugins.device_share.devices import (
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    WHOLE,
    Amounts,
    DeviceTable,
)

HIGHEST = 100


@dataclass(frozen=True, slots=True)
class DeviceScorer:
    """A formula: the weighted mean over resources, of devices that have them."""

    most: bool  # the more is requested, the better
    weights: tuple[tuple[str, int], ...]  # 1 to 100 each

    def score(self, total: Amounts, free: Amounts, request: Amounts) -> int:
        """Return the score of a device, or of a sum of devices, 0 to HIGHEST."""
        sum_of_scores = weights = 0
        for name, weight in self.weights:
            has = total.get(name, 0)
            if not has:
                continue
            taken = has - min(free.get(name, 0), has) + request.get(name, 0)
            if self.most:
                score = min(taken, has) * HIGHEST // has
            else:
                score = max(has - taken, 0) * HIGHEST // has
            sum_of_scores += score * weight
            weights += weight
        return sum_of_scores // weights if weights else 0


def with_both(request: Amounts, total: Amounts) -> Amounts:
    """Return a request of GPU memory both in bytes and in percent of a card, rounded up."""
    memory, ratio, has = (
        request.get(GPU_MEMORY),
        request.get(GPU_MEMORY_RATIO),
        total.get(GPU_MEMORY),
    )
    if not has or (memory is None) == (ratio is None):
        return request
    if memory is None:
        assert ratio is not None  # noqa: S101 - one of the two is there
        return {**request, GPU_MEMORY: ratio * has // WHOLE}
    return {**request, GPU_MEMORY_RATIO: -(-memory * WHOLE // has)}


def node_score(
    scorer: DeviceScorer,
    table: DeviceTable,
    wanted: Mapping[str, tuple[Amounts, int]],
) -> int:
    """Return the score of a node, 0 to HIGHEST: the mean over the types of what is requested.

    wanted: by type the request of each device, and the number of devices.
    """
    scores = []
    for kind, (each, count) in wanted.items():
        total, free = table.sums(kind)
        request: Amounts = each
        if kind == GPU:
            request = with_both(each, next(filter(None, table.total(kind).values()), {}))
        whole = {name: amount * count for name, amount in request.items()}
        scores.append(scorer.score(total, free, whole))
    return sum(scores) // len(scores) if scores else 0
