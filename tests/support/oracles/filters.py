"""Kubernetes' filter rules for one pod and one node, straight from the JSON: the oracle.

Written after Kubernetes' Go code, one node at a time, without anything of koord.cluster.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from koord.api.quantity import Quantity
from tests.support.clusters import Cluster, Json

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def labels(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def namespace(obj: Json) -> str:
    return obj["metadata"].get("namespace", "default")


def pods_on(node: Json, cluster: Cluster) -> Iterator[Json]:
    for pod in cluster.pods:
        alive = pod["status"]["phase"] not in ("Succeeded", "Failed")
        if alive and pod["spec"].get("nodeName") == node["metadata"]["name"]:
            yield pod


def matches(requirement: Json, found: dict[str, str]) -> bool:
    key, operator = requirement["key"], requirement["operator"]
    values = requirement.get("values", [])
    if operator == "In":
        return key in found and found[key] in values
    if operator == "NotIn":
        return key not in found or found[key] not in values
    if operator == "Exists":
        return key in found
    if operator == "DoesNotExist":
        return key not in found
    left, right = parse_int(found.get(key, "")), parse_int(values[0])
    if left is None or right is None:
        return False
    return left > right if operator == "Gt" else left < right


def parse_int(text: str) -> int | None:
    """Go's strconv.ParseInt(text, 10, 64): None where it has an error."""
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(2**63) <= int(text) < 2**63:
        return None
    return int(text)


def selects(selector: Json | None, found: dict[str, str]) -> bool:
    if selector is None:
        return False
    plain = selector.get("matchLabels", {})
    return all(found.get(key) == value for key, value in plain.items()) and all(
        matches(one, found) for one in selector.get("matchExpressions", [])
    )


def node_terms(terms: list[Json], node: Json) -> bool:
    for one in terms:
        expressions, fields = one.get("matchExpressions", []), one.get("matchFields", [])
        if not expressions and not fields:
            continue
        name = {"metadata.name": node["metadata"]["name"]}
        if all(matches(e, labels(node)) for e in expressions) and all(
            matches(e, name) for e in fields
        ):
            return True
    return False


def tolerated(pod: Json, taint: Json) -> bool:
    for one in pod["spec"].get("tolerations", []):
        if one.get("effect") and one["effect"] != taint["effect"]:
            continue
        if one.get("key") and one["key"] != taint["key"]:
            continue
        if one.get("operator", "Equal") == "Exists":
            return True
        if one.get("value", "") == taint.get("value", ""):
            return True
    return False


def schedulable(pod: Json, node: Json, cluster: Cluster) -> bool:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return not node["spec"].get("unschedulable") or tolerated(pod, cordon)


def taints(pod: Json, node: Json, cluster: Cluster) -> bool:
    return all(
        tolerated(pod, one)
        for one in node["spec"].get("taints", [])
        if one["effect"] in ("NoSchedule", "NoExecute")
    )


def affinity(pod: Json, node: Json, cluster: Cluster) -> bool:
    wanted = pod["spec"].get("nodeSelector", {})
    if any(labels(node).get(key) != value for key, value in wanted.items()):
        return False
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or node_terms(required["nodeSelectorTerms"], node)


def host_ports(pod: Json) -> list[tuple[str, str, int]]:
    return [
        (port.get("hostIP") or "0.0.0.0", port.get("protocol", "TCP"), port["hostPort"])
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if port.get("hostPort")
    ]


def ports(pod: Json, node: Json, cluster: Cluster) -> bool:
    for other in pods_on(node, cluster):
        for ip, protocol, port in host_ports(pod):
            for ip2, protocol2, port2 in host_ports(other):
                if (protocol, port) == (protocol2, port2) and (ip == ip2 or "0.0.0.0" in (ip, ip2)):
                    return False
    return True


def amounts(found: Json) -> dict[str, int]:
    return {
        name: Quantity.parse(text).milli if name == "cpu" else Quantity.parse(text).integer
        for name, text in found.items()
    }


def request(pod: Json) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        for name, amount in amounts(container["resources"]["requests"]).items():
            total[name] = total.get(name, 0) + amount
    return total


def resources(pod: Json, node: Json, cluster: Cluster) -> bool:
    room = amounts(node["status"]["allocatable"])
    there = list(pods_on(node, cluster))
    if len(there) + 1 > room.get("pods", 0):
        return False
    for name, amount in request(pod).items():
        used = sum(request(one).get(name, 0) for one in there)
        if amount > 0 and amount > room.get(name, 0) - used:
            return False
    return True


def volumes(pod: Json, node: Json, cluster: Cluster) -> bool:
    claims = {(namespace(one), one["metadata"]["name"]): one for one in cluster.claims}
    known = {one["metadata"]["name"]: one for one in cluster.volumes}
    for volume in pod["spec"].get("volumes", []):
        if "persistentVolumeClaim" not in volume:
            continue
        claim = claims.get((namespace(pod), volume["persistentVolumeClaim"]["claimName"]))
        if claim is None:
            return False
        name = claim["spec"]["volumeName"]
        if not name:
            continue
        if name not in known:
            return False
        required = known[name]["spec"].get("nodeAffinity", {}).get("required")
        if required is not None and not node_terms(required["nodeSelectorTerms"], node):
            return False
    return True


def spread(pod: Json, node: Json, cluster: Cluster) -> bool:
    constraints = [
        one
        for one in pod["spec"].get("topologySpreadConstraints", [])
        if one["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    keys = [one["topologyKey"] for one in constraints]
    for one in constraints:
        selector = one.get("labelSelector")
        if selector is not None:
            more = [
                {"key": key, "operator": "In", "values": [labels(pod)[key]]}
                for key in one.get("matchLabelKeys", [])
                if key in labels(pod)
            ]
            selector = {
                **selector,
                "matchExpressions": selector.get("matchExpressions", []) + more,
            }
        everything = selector is not None and not (
            selector.get("matchLabels") or selector["matchExpressions"]
        )
        counts: dict[str, int] = {}
        for other in cluster.nodes:
            if any(key not in labels(other) for key in keys):
                continue
            honored = one.get("nodeAffinityPolicy", "Honor") == "Honor"
            if honored and not affinity(pod, other, cluster):
                continue
            if one.get("nodeTaintsPolicy") == "Honor" and not taints(pod, other, cluster):
                continue
            domain = labels(other)[one["topologyKey"]]
            counts.setdefault(domain, 0)
            for existing in pods_on(other, cluster):
                counts[domain] += (
                    not everything
                    and namespace(existing) == namespace(pod)
                    and "deletionTimestamp" not in existing["metadata"]
                    and selects(selector, labels(existing))
                )
        if one["topologyKey"] not in labels(node):
            return False
        least = min(counts.values(), default=0)
        if len(counts) < one.get("minDomains", 1):
            least = 0
        mine = counts.get(labels(node)[one["topologyKey"]], 0) + selects(selector, labels(pod))
        if mine - least > one["maxSkew"]:
            return False
    return True


def pod_terms(pod: Json, kind: str) -> list[Json]:
    return pod["spec"].get("affinity", {}).get(kind, {}).get(REQUIRED, [])


def means(owner: Json, term: Json, other: Json, cluster: Cluster) -> bool:
    names, selector = term.get("namespaces", []), term.get("namespaceSelector")
    if not names and selector is None:
        names = [namespace(owner)]
    known = {one["metadata"]["name"]: labels(one) for one in cluster.namespaces}
    theirs = namespace(other)
    if theirs not in names:
        implied = {"kubernetes.io/metadata.name": theirs}
        if not selects(selector, known.get(theirs, implied)):
            return False
    return selects(term.get("labelSelector"), labels(other))


def near(pod: Json, node: Json, cluster: Cluster) -> bool:
    terms = pod_terms(pod, "podAffinity")
    counts: dict[tuple[str, str], int] = {}
    for other in cluster.nodes:
        for existing in pods_on(other, cluster):
            if terms and all(means(pod, one, existing, cluster) for one in terms):
                for one in terms:
                    key = one["topologyKey"]
                    if key in labels(other):
                        pair = (key, labels(other)[key])
                        counts[pair] = counts.get(pair, 0) + 1
    found = True
    for one in terms:
        key = one["topologyKey"]
        if key not in labels(node):
            return False
        found = found and counts.get((key, labels(node)[key]), 0) > 0
    return found or (not counts and all(means(pod, one, pod, cluster) for one in terms))


def apart(pod: Json, node: Json, cluster: Cluster) -> bool:
    for other in cluster.nodes:
        for existing in pods_on(other, cluster):
            both = ((pod, existing), (existing, pod))
            for owner, target in both:
                for one in pod_terms(owner, "podAntiAffinity"):
                    key = one["topologyKey"]
                    same = key in labels(node) and labels(node)[key] == labels(other).get(key)
                    if same and means(owner, one, target, cluster):
                        return False
    return True


RULES: dict[str, Callable[[Any, Any, Cluster], bool]] = {
    "UNREAD": lambda pod, node, cluster: True,  # all of them can be read
    "UNSCHEDULABLE": schedulable,
    "TAINTS": taints,
    "NODE_AFFINITY": affinity,
    "HOST_PORTS": ports,
    "RESOURCES": resources,
    "VOLUMES": volumes,
    "TOPOLOGY_SPREAD": spread,
    "POD_AFFINITY": near,
    "POD_ANTI_AFFINITY": apart,
}
