"""Kubernetes' scores by other pods for each node, straight from the JSON: the oracle.

Written after Kubernetes' Go code, one node at a time, without anything of koord.cluster.
"""

import math
from typing import Any

from tests.support.clusters import Cluster, Json
from tests.support.oracles.filters import (
    REQUIRED,
    affinity,
    labels,
    means,
    namespace,
    pods_on,
    selects,
    taints,
)

HOSTNAME = "kubernetes.io/hostname"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def name(obj: Json) -> str:
    found: str = obj["metadata"]["name"]
    return found


def spread_selector(pod: Json, constraint: Json) -> Json | None:
    selector = constraint.get("labelSelector")
    if selector is None:
        return None
    more = [
        {"key": key, "operator": "In", "values": [labels(pod)[key]]}
        for key in constraint.get("matchLabelKeys", [])
        if key in labels(pod)
    ]
    return {**selector, "matchExpressions": selector.get("matchExpressions", []) + more}


def matching(pod: Json, constraint: Json, node: Json, cluster: Cluster) -> int:
    selector = spread_selector(pod, constraint)
    if not selector or not (selector.get("matchLabels") or selector["matchExpressions"]):
        return 0
    return sum(
        namespace(one) == namespace(pod)
        and "deletionTimestamp" not in one["metadata"]
        and selects(selector, labels(one))
        for one in pods_on(node, cluster)
    )


def counts_here(pod: Json, constraint: Json, node: Json, cluster: Cluster) -> bool:
    if constraint.get("nodeAffinityPolicy", "Honor") == "Honor" and not affinity(
        pod, node, cluster
    ):
        return False
    return constraint.get("nodeTaintsPolicy") != "Honor" or taints(pod, node, cluster)


def spread(
    pod: Json, constraints: list[Json], feasible: list[Json], cluster: Cluster, *, every: bool
) -> dict[str, int]:
    """Normalized scores by node. every: a node must have all labels."""
    keys = [one["topologyKey"] for one in constraints]

    def whole(node: Json) -> bool:
        return not every or all(key in labels(node) for key in keys)

    scored = [node for node in feasible if whole(node)]
    raw: dict[str, float] = {name(node): 0.0 for node in scored}
    for one in constraints:
        key = one["topologyKey"]
        counts: dict[str, int] = {}
        if key != HOSTNAME:
            counts = {labels(node).get(key, ""): 0 for node in scored}
        size = len(scored) if key == HOSTNAME else len(counts)
        for node in cluster.nodes:
            value = labels(node).get(key, "")
            if value in counts and whole(node) and counts_here(pod, one, node, cluster):
                counts[value] += matching(pod, one, node, cluster)
        for node in scored:
            if key in labels(node):
                count = counts.get(labels(node)[key], 0)
                if key == HOSTNAME:
                    count = matching(pod, one, node, cluster)
                raw[name(node)] += count * math.log(size + 2) + (one["maxSkew"] - 1)
    rounded = {node: math.floor(score + 0.5) for node, score in raw.items()}
    least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
    result = {name(node): 0 for node in feasible}
    for node, score in rounded.items():
        result[node] = 100 * (most + least - score) // most if most else 100
    return result


def preferences(pod: Json, kind: str) -> list[Json]:
    found: list[Json] = pod["spec"].get("affinity", {}).get(kind, {}).get(PREFERRED, [])
    return found


def neighbours(
    pod: Json, feasible: list[Json], cluster: Cluster, *, hard: int = 1, ignore: bool = False
) -> dict[str, int]:
    """Normalized scores by node, of InterPodAffinity."""
    own = preferences(pod, "podAffinity") + preferences(pod, "podAntiAffinity")
    topology: dict[tuple[str, str], int] = {}

    def count(term: Json, owner: Json, target: Json, node: Json, weight: int) -> None:
        key = term["topologyKey"]
        if key in labels(node) and means(owner, term, target, cluster):
            pair = key, labels(node)[key]
            topology[pair] = topology.get(pair, 0) + weight

    for node in cluster.nodes:
        for other in pods_on(node, cluster):
            for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
                for one in preferences(pod, kind):
                    count(one["podAffinityTerm"], pod, other, node, sign * one["weight"])
                if ignore and not own:
                    continue
                for one in preferences(other, kind):
                    count(one["podAffinityTerm"], other, pod, node, sign * one["weight"])
            if not (ignore and not own):
                affine: Any = other["spec"].get("affinity", {}).get("podAffinity", {})
                for term in affine.get(REQUIRED, []):
                    count(term, other, pod, node, hard)
    raw = {
        name(node): sum(topology.get(pair, 0) for pair in labels(node).items()) for node in feasible
    }
    least, most = min(raw.values(), default=0), max(raw.values(), default=0)
    if most == least:
        return dict.fromkeys(raw, 0)
    return {node: int(100.0 * ((score - least) / (most - least))) for node, score in raw.items()}
