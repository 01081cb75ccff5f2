"""One attempt to schedule a pod, and what the parts of its cycle hand on."""

from dataclasses import dataclass, field

import numpy as np

from koord.cluster.facts import ClusterPod
from koord.util.timebudget import TimeBudget
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.diagnosis import Diagnosis, NodeStatuses
from koord_scheduler.framework.nodes.scoring import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profiles.profile import ProfilePlugins
from koord_scheduler.framework.queuedpod import QueuedPod
from koord_scheduler.framework.status import Status

ATTEMPT_SECONDS = 0.5  # of computing that the cycle of a pod may take: hundreds of usual ones


def attempt_budget() -> TimeBudget:
    """Return the computing that one attempt may take."""
    return TimeBudget(ATTEMPT_SECONDS)


class ProfileCycle:
    """The plugins of a profile at all points of a cycle."""

    def __init__(
        self, plugins: ProfilePlugins, nominator: Nominator, *, choosing: bool = False
    ) -> None:
        """choosing: extenders choose among nodes, too."""
        self.name = plugins.settings.scheduler_name
        self.plugins = plugins
        self.search = NodeSearch(plugins, nominator, choosing=choosing)
        self.scoring = NodeScoring(plugins)
        self.binding = PodBinding(plugins)


@dataclass(eq=False, kw_only=True, slots=True)
class Attempt:
    """A pod that was taken from the queue."""

    queued: QueuedPod
    pod: ClusterPod  # with its node, once it is assumed there
    profile: ProfileCycle
    began: float  # monotonic seconds
    node: str = ""  # that was chosen
    state: CycleState = field(default_factory=CycleState)
    asked: bool = False  # whether the API server may have been asked to bind it
    budget: TimeBudget = field(default_factory=attempt_budget)  # of its scheduling cycle

    @property
    def uid(self) -> str:
        return self.pod.uid


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an attempt failed."""

    status: Status  # its message is for the event and the pod's condition
    unschedulable_plugins: frozenset[str] = frozenset()
    pending_plugins: frozenset[str] = frozenset()
    nominated_node: str | None = ""  # "": a nomination that there was is void; None: as it was
    cut: bool = False  # the attempt was ended for time

    @classmethod
    def diagnosed(
        cls, status: Status, diagnosis: Diagnosis, nominated_node: str | None = None
    ) -> "Failure":
        """No node is feasible; the diagnosis says why."""
        return cls(
            status=Status(status.code, (diagnosis.message(),), status.plugin),
            unschedulable_plugins=frozenset(diagnosis.unschedulable_plugins),
            pending_plugins=frozenset(diagnosis.pending_plugins),
            nominated_node=nominated_node,
        )

    @classmethod
    def on_node(cls, status: Status) -> "Failure":
        """After a node was chosen: a plugin rejects the pod there, or something has failed."""
        if not status.rejected:
            return cls(status=status)
        statuses = NodeStatuses(np.ones(1, np.int32), (status,))
        diagnosis = Diagnosis(nodes=1, node_statuses=statuses)
        diagnosis.note(status)
        return cls.diagnosed(status, diagnosis, "")
