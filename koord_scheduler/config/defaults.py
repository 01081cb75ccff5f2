"""The plugins of a profile that says nothing: Kubernetes 1.35's, each at every point it has.

Source: Kubernetes, pkg/scheduler/apis/config/v1/default_plugins.go.
"""

from collections.abc import Mapping

from koord_scheduler.config.points import Point

_POINTS = {
    "PE": Point.PRE_ENQUEUE,
    "QS": Point.QUEUE_SORT,
    "PF": Point.PRE_FILTER,
    "F": Point.FILTER,
    "PoF": Point.POST_FILTER,
    "PS": Point.PRE_SCORE,
    "S": Point.SCORE,
    "R": Point.RESERVE,
    "PB": Point.PRE_BIND,
    "B": Point.BIND,
}
_TABLE = """
    SchedulingGates                  0  PE
    PrioritySort                     0  QS
    NodeUnschedulable                0  F
    NodeName                         0  F
    TaintToleration                  3  F PS S
    NodeAffinity                     2  PF F PS S
    NodePorts                        0  PF F
    NodeResourcesFit                 1  PF F PS S
    VolumeRestrictions               0  PF F
    NodeVolumeLimits                 0  PF F
    VolumeBinding                    0  PF F PS S R PB
    VolumeZone                       0  PF F
    PodTopologySpread                2  PF F PS S
    InterPodAffinity                 2  PF F PS S
    DynamicResources                 2  PE PF F PoF R PB S
    DefaultPreemption                0  PoF PE
    NodeResourcesBalancedAllocation  1  PS S
    ImageLocality                    1  S
    DefaultBinder                    0  B
"""

_ROWS = [line.split() for line in _TABLE.split("\n") if line.strip()]

DEFAULT_WEIGHTS: Mapping[str, int] = {name: int(weight) for name, weight, *_ in _ROWS}
"""The default plugins in their order, with the weight of their scores; 0: none of their own."""

DEFAULT_POINTS: Mapping[str, frozenset[Point]] = {
    name: frozenset(_POINTS[short] for short in points) for name, _, *points in _ROWS
}
"""The extension points of each."""
