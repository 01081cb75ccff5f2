"""What-ifs that place pods one after the other: what Reserve would write on each of them.

An account reads from a pod what it holds, such as devices. In a what-if no Reserve is called, so
its plugin says what would be written; the pods after it see what is left.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import LoadedPlugins
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.types import NodeInfo


class PlannedReservePlugin(Plugin, ABC):
    """Chooses in Reserve what a pod holds, and can say it beforehand."""

    @abstractmethod
    def planned_annotations(self, pod: ClusterPod, node: NodeInfo) -> Mapping[str, str]:
        """Return the annotations that Reserve would set on a pod, which is not on the node yet.

        Empty: none, also where Reserve would reject it. Nothing is changed.
        """


class PlannedReserve:
    """The plugins of a profile that say it. Without any, nothing is asked."""

    def __init__(self, plugins: LoadedPlugins) -> None:
        self._calls = plugins.calls
        self._plugins = [
            (plugins.loaded(name), plugin)
            for name, plugin in plugins.plugins.items()
            if isinstance(plugin, PlannedReservePlugin)
        ]

    def placed(self, pod: ClusterPod, nodes: View, node: str) -> ClusterPod:
        """Return a pod as it would be on a node of a view.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        row = nodes.row(node) if self._plugins else None
        if row is None:
            return pod
        annotations = dict(pod.annotations)
        for loaded, plugin in self._plugins:
            work = partial(plugin.planned_annotations, pod, NodeInfo(nodes, row))
            annotations.update(self._calls.ask(loaded, Point.RESERVE, work))
        found = tuple(sorted(annotations.items()))
        return pod if found == pod.annotations else replace(pod, annotations=found)
