"""Which of the reservations that fit a pod is to have, and how nodes with reservations rank.

All choices are made in one order: order label, score, creation, uid.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from koord_scheduler_plugins.reservation.amounts import Amounts
from koord_scheduler_plugins.reservation.info import ReservationInfo

PREFERRED = 1000  # the score of a node with the first reservation by order, before normalization
ALREADY_ALLOCATED = "reservation has allocateOnce enabled and has already been allocated"
_NOTHING: Amounts = {}


def score_reservation(
    requests: Amounts, info: ReservationInfo, preemptible: Amounts = _NOTHING
) -> int:
    """Return how full a reservation is with the pod in it, 0 to 100; what is over full counts 0."""
    scores = []
    for name in info.names:
        capacity = info.allocatable[name]
        if capacity > 0:
            used = max(0, info.used.get(name, 0) - preemptible.get(name, 0))
            wanted = requests.get(name, 0) + used
            scores.append(100 * wanted // capacity if wanted <= capacity else 0)
    return sum(scores) // len(scores) if scores else 0


def nominate(
    candidates: Iterable[ReservationInfo], score: Callable[[ReservationInfo], int]
) -> ReservationInfo | None:
    """Return the reservation that a pod is to have; None: there is none.

    candidates: those of one node through which the pod fits. One that has been given away already
    is none.
    """
    free = [one for one in candidates if not one.taken]
    if len(free) <= 1:
        return free[0] if free else None

    def place(info: ReservationInfo) -> tuple[float, int, float, str]:
        reservation = info.reservation
        created = math.inf if reservation.created is None else reservation.created
        return _order(info), -score(info), created, info.uid

    return min(free, key=place)


def preferred_node(matched: Mapping[str, Sequence[ReservationInfo]]) -> str | None:
    """Return the node that has the reservation with the smallest order; None: none has an order.

    matched: by node. Of several nodes the first one of the mapping is returned.
    """
    orders = {
        node: min((_order(info) for info in infos), default=math.inf)
        for node, infos in matched.items()
    }
    found = min(orders, key=lambda node: orders[node], default=None)
    return None if found is None or math.isinf(orders[found]) else found


def node_scores(
    nodes: Iterable[str], scores: Mapping[str, int], preferred: str | None
) -> dict[str, int]:
    """Return the normalized scores of nodes, 0 to 100.

    scores: of the reservations that are nominated, by node.
    """
    found = {node: PREFERRED if node == preferred else scores.get(node, 0) for node in nodes}
    most = max(found.values(), default=0)
    return {node: 100 * score // most if most else 0 for node, score in found.items()}


def _order(info: ReservationInfo) -> float:
    order = info.reservation.order
    return math.inf if order is None else order
