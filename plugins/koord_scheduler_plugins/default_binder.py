"""DefaultBinder: binds a pod by the API server.

Source: Kubernetes, plugins/defaultbinder/default_binder.go.
"""

from typing import Any

from koord_scheduler.plugin import (
    PODS,
    BindPlugin,
    ClusterPod,
    CycleState,
    Handle,
    KoordError,
    Status,
)


class DefaultBinder(BindPlugin):
    """Posts a Binding, once. Whatever is refused, a conflict too, is an error of this attempt:
    the pod is tried again, unless it proves to be bound.
    """

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._client = handle.services.client

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        path = PODS.object(pod.name, namespace=pod.namespace, subresource="binding")
        try:
            await self._client.submit(path, binding(pod, node_name), attempts=1)
        except KoordError as err:
            return Status.failed(err)
        return None


def binding(pod: ClusterPod, node_name: str) -> dict[str, Any]:
    """The Binding of this very pod: the uid keeps it from being one's that has taken its name."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        "target": {"kind": "Node", "name": node_name},
    }
