"""What of the requests of prod pods others may have, by what was learnt of their peaks.

Source: Koordinator pkg/koordlet/prediction (pod and priority reclaimable predictors). Deliberately
different: a pod counts as unpredicted while its model is young, not only while the pod is, and one
without a model is offered to both predictors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from koord.api.amounts import Amounts
from koord.api.nodemetric import ProdPrediction


@dataclass(frozen=True, slots=True)
class Demand:
    """A prod pod, or one without a class, that is in the report."""

    request: Amounts
    peak: Amounts | None  # CPU at p95, memory at p98; None: too little is known of this pod
    ending: bool = False  # deleted or finished


def predict_by_pods(
    demands: Iterable[Demand], allocatable: Amounts | None, factor: float
) -> ProdPrediction:
    """Predict by each pod's own peak. factor: 1 plus the safety margin.

    A pod without one keeps its whole request, also while it ends.
    """
    free = unreclaimable = unpredicted = Amounts()
    for demand in demands:
        if demand.peak is None:
            unpredicted += demand.request
        elif not demand.ending:
            peak = demand.peak.scaled(factor)
            unreclaimable += peak
            free += demand.request.less(peak)
    return ProdPrediction(_within(allocatable, unreclaimable, free), unreclaimable + unpredicted)


def predict_by_classes(
    demands: Iterable[Demand],
    peaks: Iterable[Amounts],
    allocatable: Amounts | None,
    factor: float,
) -> ProdPrediction:
    """Predict by the peaks of the system and of the prod pods together."""
    unreclaimable = sum_of(peaks).scaled(factor)
    requested = sum_of(demand.request for demand in demands if not demand.ending)
    return ProdPrediction(
        _within(allocatable, unreclaimable, requested.less(unreclaimable)), unreclaimable
    )


def most_careful(predictions: Iterable[ProdPrediction]) -> ProdPrediction:
    """Return the least that others may have by any of them, and the highest peak."""
    return reduce(_careful, predictions)


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum."""
    return sum(amounts, start=Amounts())


def _careful(one: ProdPrediction, other: ProdPrediction) -> ProdPrediction:
    if one.reclaimable is None or other.reclaimable is None:
        reclaimable = None
    else:
        reclaimable = one.reclaimable.lower(other.reclaimable)
    return ProdPrediction(reclaimable, one.peak.higher(other.peak))


def _within(allocatable: Amounts | None, unreclaimable: Amounts, free: Amounts) -> Amounts | None:
    return None if allocatable is None else allocatable.less(unreclaimable).lower(free)
