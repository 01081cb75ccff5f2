"""Arguments of VolumeBinding. Source: Kubernetes, kubescheduler.config.k8s.io/v1."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_scheduler.plugin import Fault, Int32, invalid, required

HIGHEST_UTILIZATION = 100  # percent
HIGHEST_SCORE = 10  # as people give it; 100 is the highest of a node


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapePoint:
    """A score for a utilization; between two points it is a straight line."""

    utilization: Int32 = 0  # percent of the volumes' capacity that the claims request
    score: Int32 = 0  # 0 to 10


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeBindingArgs:
    """How long binding may take, and how volumes are scored."""

    bind_timeout_seconds: int = 600  # for all claims of a pod to be bound; 0: at once
    shape: tuple[ShapePoint, ...] | None = None  # None: volumes are not scored

    def validate(self) -> Iterator[Fault]:
        if self.bind_timeout_seconds < 0:
            seconds = self.bind_timeout_seconds
            yield invalid(("bindTimeoutSeconds",), seconds, "wanted 0 or more seconds")
        if self.shape is None:
            return
        if not self.shape:
            yield required(("shape",), "at least one point must be specified")
        last = -1
        for at, point in enumerate(self.shape):
            if not 0 <= point.utilization <= HIGHEST_UTILIZATION:
                place = ("shape", at, "utilization")
                yield invalid(place, point.utilization, "not in valid range [0-100]")
            elif point.utilization <= last:
                place = ("shape", at, "utilization")
                yield invalid(place, point.utilization, "values must be sorted in increasing order")
            if not 0 <= point.score <= HIGHEST_SCORE:
                yield invalid(("shape", at, "score"), point.score, "not in valid range [0-10]")
            last = max(last, point.utilization)
