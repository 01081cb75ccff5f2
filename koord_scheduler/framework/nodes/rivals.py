"""Nominated pods that go before others, on their nodes."""

from collections import OrderedDict

from koord.cluster.crowd import Crowd
from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.nominator import Nominator

MOST_PRIORITIES = 8  # whose crowds are kept: 1 KB for each nominated pod


class Rivals:
    """For pods of each priority the crowd of those nominated pods that go before them."""

    def __init__(self, nominator: Nominator) -> None:
        self._nominator = nominator
        self._version = nominator.version
        self._crowds: OrderedDict[int, Crowd] = OrderedDict()  # by priority

    def of(self, pod: ClusterPod) -> Crowd | None:
        """Return the rivals of a pod on all nodes; None: there are none."""
        nominator = self._nominator
        if not len(nominator):
            return None
        if nominator.node_of(pod.key) is not None:  # not its own rival
            return Crowd(nominator.rivals(pod))
        if nominator.version != self._version:
            self._version = nominator.version
            for priority, crowd in self._crowds.items():
                crowd.put(nominator.of_priority(priority))
        priority = pod.priority or 0
        found = self._crowds.get(priority)
        if found is None:
            found = self._crowds[priority] = Crowd(nominator.of_priority(priority))
            if len(self._crowds) > MOST_PRIORITIES:
                self._crowds.popitem(last=False)
        self._crowds.move_to_end(priority)
        return found

    def on_node(self, pod: ClusterPod, node: str) -> Crowd | None:
        """Return the rivals of a pod on one node alone; None: there are none."""
        found = self._nominator.rivals_on(pod, node)
        return Crowd({node: found}) if found else None
