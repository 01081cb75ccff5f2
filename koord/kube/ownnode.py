"""Checks that the API server keeps this agent to its own node's objects: tried, without effect.

Source: Kubernetes, API concepts, "Dry-run": admission decides as always, nothing is stored.
"""

from dataclasses import dataclass

from koord.kube.client import MERGE_PATCH, ApiClient
from koord.kube.deadline import Deadline
from koord.kube.errors import Forbidden, KubeError
from koord.kube.resource import NODE_METRICS
from koord.kube.transport import METADATA, METADATA_LIST
from koord.util.clock import Clock

PATIENCE = 5.0  # seconds for both requests; a control command waits 10 for all that it shows

# How the refusals of admission policies and webhooks are worded. RBAC's say "cannot patch": they
# come before admission is asked.
BY_ADMISSION = ("denied request", "denied the request")


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """holds: what was tried was refused; None: that is not known. detail says why."""

    holds: bool | None
    detail: str


async def check_own_node(client: ApiClient, node: str, clock: Clock) -> AdmissionCheck:
    """Ask to patch the status of another node's NodeMetric, as a dry run and without a change.

    The patch is empty, so nothing would change even on a server that knows no dry runs.
    """
    try:
        async with Deadline(clock, "the dry run") as deadline:
            deadline.enter("an answer of the API server", PATIENCE)
            other = await _other_node(client, node)
            if not other:
                found = "the cluster has no NodeMetric of another node to try it on"
                return AdmissionCheck(None, found)
            return await _try(client, other)
    except KubeError as err:
        return AdmissionCheck(None, str(err))


async def _other_node(client: ApiClient, node: str) -> str:
    """The name of another node with a NodeMetric; "" when there is none."""
    path = NODE_METRICS.collection()
    async for page in client.pages(path, size=2, accept=METADATA_LIST):
        for item in page.items:
            name = item["metadata"].get("name")
            if isinstance(name, str) and name not in ("", node):
                return name
    return ""


async def _try(client: ApiClient, other: str) -> AdmissionCheck:
    path = NODE_METRICS.object(other, subresource="status")
    try:
        await client.patch(path, {}, MERGE_PATCH, accept=METADATA, dry_run=True)
    except Forbidden as err:
        if not any(words in err.message for words in BY_ADMISSION):
            return AdmissionCheck(None, f"refused before admission was asked: {err.message}")
        return AdmissionCheck(True, f"refused as wanted: {err.message}")
    return AdmissionCheck(False, f"a dry run of a write to the NodeMetric of {other} was allowed")
