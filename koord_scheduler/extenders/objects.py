"""Objects as the API server has them: extenders get them whole, the scheduler keeps less."""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import json

from koord.cluster.facts import ClusterPod
from koord.kube.client import ApiClient
from koord.kube.resource import NODES, PODS
from koord.util.errors import KoordError
from koord_scheduler.config.v1 import Extender
from koord_scheduler.framework.handle import Informers

KEPT_PODS = 256  # that were read last


class FollowedObjects:
    """Pods are read when an extender is asked about them; nodes are followed, if one wants them."""

    def __init__(
        self, client: ApiClient, informers: Informers, extenders: Sequence[Extender]
    ) -> None:
        """It is made before informers are started."""
        self._client = client
        self._pods: OrderedDict[str, tuple[ClusterPod, bytes]] = OrderedDict()  # by uid
        self._encoded: dict[str, tuple[object, bytes]] = {}  # by name; of which object
        wanted = any(not one.node_cache_capable for one in extenders)
        self._informer = informers.informer(NODES) if wanted else None

    async def pod(self, pod: ClusterPod) -> bytes:
        """Return a pod.

        Raises:
            KoordError: it cannot be had, or is another one by now.
        """
        kept = self._pods.get(pod.uid)
        if kept is not None and kept[0] is pod:
            return kept[1]
        found = await self._client.get(PODS.object(pod.name, namespace=pod.namespace))
        uid = found.get("metadata", {}).get("uid")
        if uid != pod.uid:
            raise KoordError(f"pod {pod.key}: wanted uid {pod.uid}, found {uid!r:.80}")
        data = json.encode({"kind": "Pod", "apiVersion": "v1", **found})
        self._pods[pod.uid] = pod, data
        self._pods.move_to_end(pod.uid)
        if len(self._pods) > KEPT_PODS:
            self._pods.popitem(last=False)
        return data

    async def nodes(self, names: Sequence[str]) -> tuple[bytes, ...]:
        """Return those of the nodes that there are."""
        nodes = {} if self._informer is None else self._informer.objects
        found = ((name, nodes.get(name)) for name in names)
        return tuple(self._node(name, one) for name, one in found if one is not None)

    def _node(self, name: str, found: object) -> bytes:
        kept = self._encoded.get(name)
        if kept is None or kept[0] is not found:
            kept = self._encoded[name] = found, json.encode(found)
        return kept[1]
