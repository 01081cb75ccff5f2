"""What kubelets, controllers and users have in a cluster beside our daemons."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from koord.kube.client import EVENTS, NODES, PODS, ApiClient, Resource
from koord.kube.errors import AlreadyExists, NotFound

NAMESPACES = Resource("v1", "namespaces")
SERVICE_ACCOUNTS = Resource("v1", "serviceaccounts")
REPLICA_SETS = Resource("apps/v1", "replicasets")
SHOP = "shop"  # where the tests' pods are
READY: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
_PATIENCE = 60.0  # real seconds
_AT_ONCE = {"gracePeriodSeconds": 0}
Object = dict[str, Any]


class ClusterObjects:
    """Makes them, and removes them at the end; namespaces stay."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._made: list[str] = []
        self._namespaces: set[str] = set()

    async def add_namespace(self, name: str) -> None:
        """Have it, with the service account that a pod without one gets."""
        if name in self._namespaces:
            return
        self._namespaces.add(name)
        for path, item in (
            (NAMESPACES.collection(), "v1/Namespace"),
            (SERVICE_ACCOUNTS.collection(name), "v1/ServiceAccount"),
        ):
            called = name if path == NAMESPACES.collection() else "default"
            with contextlib.suppress(AlreadyExists):
                await self._client.create(path, _object(item, called))

    async def add_node(
        self, name: str, status: Mapping[str, Any], **metadata: Mapping[str, str]
    ) -> Object:
        """A node on which pods may be at once, whatever its conditions say."""
        body = _object("v1/Node", name, **metadata) | {"status": dict(status)}
        self._made.append(NODES.object(name))
        await self._client.create(NODES.collection(), body)
        # Admission has given it one, which the node life cycle controller takes off.
        return await self._client.merge_patch(NODES.object(name), {"spec": {"taints": None}})

    async def add_pod(
        self,
        name: str,
        spec: Mapping[str, Any],
        status: Mapping[str, Any] | None = None,
        *,
        namespace: str = SHOP,
        **metadata: Any,
    ) -> Object:
        """A pod of one container, which ends at once when it is evicted. status: its kubelet's."""
        await self.add_namespace(namespace)
        container = {"name": "app", "image": "app"}
        body = _object("v1/Pod", name, **metadata)
        body["spec"] = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
        self._made.append(PODS.object(name, namespace=namespace))
        made = await self._client.create(PODS.collection(namespace), body)
        if status is None:
            return made
        path = PODS.object(name, namespace=namespace, subresource="status")
        return await self._client.merge_patch(path, {"status": dict(status)})

    async def add_replica_set(self, name: str, replicas: int, *, namespace: str = SHOP) -> Object:
        """One, as the ownerReference of its pods, which have the label app."""
        await self.add_namespace(namespace)
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "app", "image": "app"}]},
        }
        body = _object("apps/v1/ReplicaSet", name)
        body["spec"] = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
        }
        self._made.append(REPLICA_SETS.object(name, namespace=namespace))
        made = await self._client.create(REPLICA_SETS.collection(namespace), body)
        return {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name,
            "uid": made["metadata"]["uid"], "controller": True,
        }  # fmt: skip

    async def have(
        self, resource: Resource, name: str, item: Object, *, namespace: str = ""
    ) -> None:
        """Create an object, or set fields of the one that is there."""
        if namespace:
            await self.add_namespace(namespace)
        path = resource.object(name, namespace=namespace)
        try:
            await self._client.merge_patch(path, item)
        except NotFound:
            self._made.append(path)
            body = {"metadata": {"name": name}, **item}
            await self._client.create(resource.collection(namespace), body)

    async def placed(self, name: str) -> Object:
        """A pod of SHOP, once it has a node."""
        return await self._pod(name, lambda pod: pod["spec"].get("nodeName"))

    async def pod_condition(self, name: str, kind: str) -> Object:
        """A condition of a pod of SHOP, once it has it."""

        def condition(pod: Object) -> Object | None:
            conditions = pod["status"].get("conditions", ())
            return next((one for one in conditions if one["type"] == kind), None)

        found = condition(await self._pod(name, condition))
        assert found is not None
        return found

    async def _pod(self, name: str, is_there: Callable[[Object], object]) -> Object:
        async with asyncio.timeout(_PATIENCE):
            while True:
                pod = await self._client.get(PODS.object(name, namespace=SHOP))
                if is_there(pod):
                    return pod
                await asyncio.sleep(0.1)

    async def names(self, resource: Resource = PODS, namespace: str = SHOP) -> list[str]:
        """The names of all objects of a kind in a namespace, in order."""
        found = (await self._client.list(resource.collection(namespace))).items
        return sorted(each["metadata"]["name"] for each in found)

    async def reported(self, reason: str, namespace: str = SHOP) -> list[str]:
        """The objects that have an event with this reason, in order."""
        events = (await self._client.list(EVENTS.collection(namespace))).items
        return sorted(
            {each["involvedObject"]["name"] for each in events if each["reason"] == reason}
        )

    async def remove_all(self) -> None:
        """Leave nothing for the next test."""
        for namespace in self._namespaces:
            listed = await self.names(PODS, namespace)
            self._made += [PODS.object(each, namespace=namespace) for each in listed]
            await self._client.delete(EVENTS.collection(namespace))
        for path in reversed(self._made):
            with contextlib.suppress(NotFound):
                await self._client.delete(path, options=_AT_ONCE)


def _object(kind: str, name: str, **metadata: Any) -> Object:
    version, _, kind = kind.rpartition("/")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
