"""Tries, without effect, whether the API server lets only schedulers write what a pod was given.

Source: Kubernetes, API concepts, "Dry-run": admission decides as always, nothing is stored.
"""

from typing import Any

from koord.api.pods.deviceallocation import DEVICE_ALLOCATED
from koord.kube.client import ApiClient
from koord.kube.deadline import Deadline
from koord.kube.errors import Forbidden, KubeError
from koord.kube.ownnode import BY_ADMISSION, PATIENCE, AdmissionCheck
from koord.kube.resource import PODS
from koord.util.clock import Clock

_NAME = "koordlet-doctor"
_BY_HAND = (
    f"`kubectl run {_NAME} --image=none --dry-run=server "
    f"--annotations={DEVICE_ALLOCATED}={{}}` as a tenant has to be refused"
)


async def check_pod_allocations(client: ApiClient, namespace: str, clock: Clock) -> AdmissionCheck:
    """Ask to create a pod that gives itself devices, as a dry run.

    The pod is one that no scheduler places, on a server that knows no dry runs.
    """
    try:
        async with Deadline(clock, "the dry run") as deadline:
            deadline.enter("an answer of the API server", PATIENCE)
            await client.create(PODS.collection(namespace), _pod(namespace), dry_run=True)
    except Forbidden as err:
        return _refused(err.message)
    except KubeError as err:
        return AdmissionCheck(None, str(err))
    return AdmissionCheck(False, f"a dry run of a pod with {DEVICE_ALLOCATED} was allowed")


def _refused(message: str) -> AdmissionCheck:
    if not any(words in message for words in BY_ADMISSION):
        found = "this agent may not create pods, as it should, so it cannot try"
        return AdmissionCheck(None, f"{found}: {_BY_HAND}")
    if DEVICE_ALLOCATED not in message:
        return AdmissionCheck(None, f"refused for another reason: {message}; {_BY_HAND}")
    return AdmissionCheck(True, f"refused as wanted: {message}")


def _pod(namespace: str) -> dict[str, Any]:
    """A pod that the strictest pod security admits."""
    container = {
        "name": "none",
        "image": "registry.invalid/none",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": _NAME,
            "namespace": namespace,
            "annotations": {DEVICE_ALLOCATED: "{}"},
        },
        "spec": {"schedulerName": _NAME, "restartPolicy": "Never", "containers": [container]},
    }
