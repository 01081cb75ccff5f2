"""Plugins that choose the next pod, or change one once its node is known.

Source: Koordinator, pkg/scheduler/frameworkext/interface.go.
"""

from abc import ABC, abstractmethod

from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.status import Status


class NextPodPlugin(Plugin, ABC):
    """Says which pod is tried next; one plugin name for all profiles."""

    @abstractmethod
    def next_pod(self) -> str | None:
        """Return the uid of a pod that waits in the queue; None: the queue's own order."""


class ResizePodPlugin(Plugin, ABC):
    """Changes what a pod requests, once its node is known. Needs the feature gate ResizePod."""

    @abstractmethod
    def resize_pod(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> ClusterPod | Status | None:
        """Return the pod with other requests, as it is assumed on the node; None: as it is."""
