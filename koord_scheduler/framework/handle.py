"""What factories get: everything that a plugin may use, handed in."""

from dataclasses import dataclass, field

from koord.cluster.state import ClusterState
from koord.component.plugins.timelimit import ManyLimits
from koord.util.clock import Clock
from koord_scheduler.framework.metrics import FrameworkMetrics
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.waitingpods import WaitingPods


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """What all profiles of a process share."""

    cluster: ClusterState
    """The cluster as it is known, with the pods that are assumed; plugins only read it."""
    waiting: WaitingPods
    """Pods that wait for a permit, which plugins give or refuse."""
    nominator: Nominator
    """Pods that wait for room on a node, which preemption makes."""
    clock: Clock
    metrics: FrameworkMetrics
    limits: ManyLimits = field(default_factory=ManyLimits)
    """Of plugins' code that does not await. Entered by whoever runs cycles and the queue, for as
    long as they run, which makes each call cheap.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """What the plugins of one profile get."""

    profile: str  # its scheduler name
    services: Services
