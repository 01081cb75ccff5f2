"""DefaultBinder and DefaultPreBind: bind a pod, and patch it first, by the API server."""

from typing import Any

from koord.plugin import KoordError
from koord.plugin.kube import MERGE_PATCH, PODS, Conflict, KubeError, TooManyRequests, Unreachable
from koord_scheduler.plugin import (
    BindPlugin,
    ClusterPod,
    CycleState,
    Handle,
    PodChanges,
    PreBindExtensions,
    PreBindPlugin,
    Status,
    pod_changes,
)


class DefaultBinder(BindPlugin):
    """Posts a Binding, once. Any rejection by the API server, a conflict too, is an error of this
    attempt: the pod is tried again, unless it proves to be bound.
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


_PAUSES = (0.05, 0.1, 0.2, 0.4)  # seconds before each further attempt
_DELETING = "the pod is being deleted"


class DefaultPreBind(PreBindPlugin, PreBindExtensions):
    """Sends one patch with all labels and annotations that have been changed."""

    def __init__(self, args: Any, handle: Handle) -> None:
        """It has no arguments."""
        self._client = handle.services.client
        self._clock = handle.services.clock
        self._cluster = handle.services.cluster

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        """There is something to do where the pod has been changed already, as in Reserve."""
        return None if pod_changes(state).metadata else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Nothing: the changes are applied when all plugins have made theirs."""
        return None

    async def apply_patch(
        self, state: CycleState, pod: ClusterPod, changes: PodChanges
    ) -> Status | None:
        """Send the patch for this very pod; again after a conflict or where no answer arrived."""
        path = PODS.object(pod.name, namespace=pod.namespace)
        body = {"metadata": {"uid": pod.uid, **changes.metadata}}
        for pause in (*_PAUSES, None):
            if self._is_deleting(pod):
                return Status.failed(_DELETING)
            try:
                found = await self._client.patch(path, body, MERGE_PATCH)
            except KubeError as err:
                passing = isinstance(err, Conflict | TooManyRequests | Unreachable)
                if not passing or pause is None or not self._is_there(pod):
                    return Status.failed(err)
                await self._clock.sleep(pause)
                continue
            metadata = found.get("metadata") or {}
            if metadata.get("deletionTimestamp") is not None:
                return Status.failed(_DELETING)
            break
        return None

    def _is_there(self, pod: ClusterPod) -> bool:
        known = self._cluster.pod(pod.key)
        return known is not None and known.uid == pod.uid

    def _is_deleting(self, pod: ClusterPod) -> bool:
        known = self._cluster.pod(pod.key)
        return known is not None and known.uid == pod.uid and known.deleting
