"""What PreBind plugins change about the pod: collected, and sent by one plugin in one request.

Source: Koordinator, pkg/scheduler/frameworkext (PreBindExtensions, ApplyPatch).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import Status

_KEY = "scheduling.koordinator.sh/pod-changes"


@dataclass(slots=True)
class PodChanges:
    """Labels and annotations to set on a pod before it is bound; None: to remove."""

    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)

    def clone(self) -> "PodChanges":
        return PodChanges(dict(self.labels), dict(self.annotations))

    @property
    def metadata(self) -> Mapping[str, object]:
        """The fields of a merge patch's metadata; empty: nothing is changed."""
        both = {"labels": self.labels, "annotations": self.annotations}
        return {name: dict(values) for name, values in both.items() if values}


class PreBindExtensions(Plugin, ABC):
    """Applies what PreBind plugins have changed; active where its plugin is enabled at preBind."""

    @abstractmethod
    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        """Apply it, fail, or skip it: then the next plugin's turn comes."""


def pod_changes(state: CycleState) -> PodChanges:
    """Return what is changed about the pod of this cycle, to be added to in PreBind or before."""
    found = state.find(_KEY, PodChanges)
    if found is None:
        found = PodChanges()
        state.write(_KEY, found)
    return found
