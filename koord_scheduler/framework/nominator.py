"""Pods that were nominated to a node: room is being made for them there.

Source: Kubernetes, pkg/scheduler/backend/queue/nominator.go.
"""

from collections.abc import Mapping, Sequence

from koord.cluster.facts import ClusterPod


class Nominator:
    """Nominated pods by node. A pod is nominated to one node at a time."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, ClusterPod]] = {}  # by key of the pod
        self._nodes: dict[str, str] = {}  # by key of the pod

    def __len__(self) -> int:
        return len(self._nodes)

    def nominate(self, pod: ClusterPod, node: str) -> None:
        """Nominate a pod to a node, and to no other any more."""
        self.forget(pod.key)
        self._nodes[pod.key] = node
        self._by_node.setdefault(node, {})[pod.key] = pod

    def update(self, pod: ClusterPod) -> None:
        """Take over a changed pod, if it is nominated; another one of its name is not."""
        node = self._nodes.get(pod.key)
        if node is None:
            return
        if self._by_node[node][pod.key].uid == pod.uid:
            self._by_node[node][pod.key] = pod
        else:
            self.forget(pod.key)

    def forget(self, key: str) -> None:
        """End a nomination; of a pod, namespace/name, without one nothing changes."""
        node = self._nodes.pop(key, None)
        if node is not None:
            pods = self._by_node[node]
            del pods[key]
            if not pods:
                del self._by_node[node]

    def node_of(self, key: str) -> str | None:
        """The node that a pod is nominated to; None: none."""
        return self._nodes.get(key)

    def pods_of(self, node: str) -> tuple[ClusterPod, ...]:
        """The pods that are nominated to a node."""
        return tuple(self._by_node.get(node, {}).values())

    def rivals(self, pod: ClusterPod) -> Mapping[str, Sequence[ClusterPod]]:
        """By node, the other nominated pods whose priority is equal or higher: they go first."""
        found: dict[str, list[ClusterPod]] = {}
        least = pod.priority or 0
        for node, pods in self._by_node.items():
            for key, one in pods.items():
                if key != pod.key and (one.priority or 0) >= least:
                    found.setdefault(node, []).append(one)
        return found
