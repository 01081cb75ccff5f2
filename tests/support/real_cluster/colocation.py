"""A user's colocation in the cluster: a profile, batch pods, and what nodes offer to them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from koord.api.annotations import USAGE_THRESHOLDS
from koord.api.quantity import Quantity
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.api import Api
from tests.support.real_cluster.client import SHOP, Cluster, Object, best_effort, pod

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
EACH = 200  # thousandths of a CPU that a batch pod asks for
MEMORY = "64Mi"  # that it asks for
_POLICIES = ",".join(
    f"{kind}admissionpolic{ending}"
    for kind in ("mutating", "validating")
    for ending in ("ies", "ybindings")
)
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "koord-batch"},
    "value": 5500,
}
PROFILE = {
    "apiVersion": "config.koordinator.sh/v1alpha1",
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"app-type": "batch"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "schedulerName": "koord-scheduler",
    },
}


def begin_colocation(cluster: Cluster) -> None:
    """Apply the profile; return when the API server mutates pods by it."""
    cluster.apply(PRIORITY, PROFILE)
    # What else the nodes have to do keeps no pod away.
    off = json.dumps({"usageThresholds": {"cpu": 0, "memory": 0}})
    cluster.kubectl("annotate", "nodes", "--all", "--overwrite", f"{USAGE_THRESHOLDS}={off}")
    api = Api(cluster.directory)
    cluster.until(lambda: is_mutated(api), "the API server mutates pods")


def end_colocation(cluster: Cluster) -> None:
    """Remove what begin_colocation has made."""
    cluster.kubectl("annotate", "nodes", "--all", f"{USAGE_THRESHOLDS}-")
    kinds = ("clustercolocationprofile/batch", "priorityclass/koord-batch")
    cluster.kubectl("delete", "--ignore-not-found", *kinds)


def batch_pod(app: str, *, busy: int = 0, **spec: Any) -> Object:
    """A pod as its owner writes it: native requests and the label of the profile; as pod."""
    made = pod("", app, busy=busy, **spec)
    made["metadata"]["labels"]["app-type"] = "batch"
    del made["spec"]["schedulerName"]
    requests = {"cpu": f"{EACH}m", "memory": MEMORY}
    made["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
    return made


def is_mutated(api: Api) -> bool:
    """Whether the API server would make a batch pod of it; it creates none."""
    made = batch_pod("tried")
    made["metadata"]["name"] = "tried"
    found = api.ask(f"/api/v1/namespaces/{SHOP}/pods?dryRun=All", "POST", made) or {}
    return "code" not in found and not list(not_mutated([found]))


def is_admitted(cluster: Cluster) -> bool:
    """Whether a best-effort pod without a priority is admitted, which a policy refuses."""
    made = json.dumps(best_effort("unprioritized"))
    said = cluster.kubectl("create", "--dry-run=server", "-f", "-", given=made, check=False)
    return "created" in said


def policies(cluster: Cluster) -> dict[str, str]:
    """Return the version of each policy and binding that koord-manager keeps."""
    ours = ("-l", "app.kubernetes.io/managed-by=koord-manager")
    return {
        f"{each['kind']} {each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for each in cluster.items(_POLICIES, *ours)
    }


def not_mutated(pods: Iterable[Object]) -> Iterator[str]:
    """Yield the pods with the label of the profile that are not as it has them."""
    for each in pods:
        metadata, spec = each.get("metadata", {}), each.get("spec", {})
        if (labels := metadata.get("labels", {})).get("app-type") != "batch":
            continue
        wanted = {BATCH_CPU: str(EACH), BATCH_MEMORY: MEMORY}
        as_wanted = (
            labels.get("koordinator.sh/qosClass") == "BE"
            and spec["schedulerName"] == "koord-scheduler"
            and spec["priorityClassName"] == "koord-batch"
            and all(one["resources"]["requests"] == wanted for one in spec["containers"])
        )
        if not as_wanted:
            yield f"pod {metadata['namespace']}/{metadata['name']} is not as its profile has it"


def beyond_capacity(nodes: Iterable[Object]) -> Iterator[str]:
    """Yield the nodes that offer less than nothing to batch pods, or more than they have."""
    for each in nodes:
        status = each["status"]
        for name, native in ((BATCH_CPU, "cpu"), (BATCH_MEMORY, "memory")):
            for part in ("allocatable", "capacity"):
                if (text := status.get(part, {}).get(name)) is None:
                    continue
                amount, whole = Quantity.parse(text), Quantity.parse(status["capacity"][native])
                most = whole.milli if native == "cpu" else whole.integer
                if not 0 <= amount.integer <= most:
                    found = f"{text} of {name} in its {part}, and {whole} of {native}"
                    yield f"{each['metadata']['name']} has {found}"


def offered(api: Api, node: str = NODE) -> int:
    """Return the batch-cpu of a node; 0: it has none."""
    found = api.ask(f"/api/v1/nodes/{node}") or {}
    amount = found.get("status", {}).get("allocatable", {}).get(BATCH_CPU, "0")
    return Quantity.parse(amount).integer
