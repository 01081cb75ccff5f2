"""Holdings of pods in CPUs and NUMA nodes: read from annotations, kept in the account.

A pod's CPUs are kept as the list that is in its annotation. Where they are is asked when the node's
topology is known, so that pods which are known before it are counted as well.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from koord.api.annotations import RESOURCE_SPEC, RESOURCE_STATUS, annotation_fields
from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.quantity import Quantity
from koord.api.reservation import RESERVE_POD_NAME
from koord.plugin import InvalidObject
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.koordinator import AccountKind, Holding, Pool
from koord_scheduler_plugins.node_numa_resource.accumulator import (
    MAX_CPU,
    MAX_NUMA_NODE,
    ExclusivePolicy,
)
from koord_scheduler_plugins.node_numa_resource.topology import Amounts, Zones, amount_of

_CPU = "cpu"
_POD, _NUMA = "pod", "numa"  # what an amount is about
_MAX_ZONES = MAX_NUMA_NODE + 1


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of a pod on its node. Amounts of 0 are absent."""

    cpus: frozenset[int] = frozenset()
    numa: tuple[tuple[int, Amounts], ...] = ()  # by NUMA node, ascending

    def __bool__(self) -> bool:
        return bool(self.cpus or self.numa)


NO_ALLOCATION = Allocation()


@lru_cache(maxsize=4096)
def parse_allocation(text: str) -> Allocation:
    """Return what an annotation resource-status says.

    Raises:
        InvalidObject: it is malformed, or names CPUs, NUMA nodes or amounts that none can have.
    """
    fields = annotation_fields(text, RESOURCE_STATUS)
    listed = fields.text("cpuset")
    try:
        cpus = parse_cpulist(listed)
    except ValueError as err:
        where = fields.path("cpuset")
        raise InvalidObject(where, wanted="a list of CPUs", found=listed) from err
    if cpus and max(cpus) > MAX_CPU:
        raise InvalidObject(fields.path("cpuset"), wanted=f"0 to {MAX_CPU}", found=max(cpus))
    numa: dict[int, Amounts] = {}
    for each in fields.objects("numaNodeResources"):
        node = each.integer("node") or 0
        if not 0 <= node <= MAX_NUMA_NODE or node in numa:
            wanted = f"each of 0 to {MAX_NUMA_NODE} once"
            raise InvalidObject(each.path("node"), wanted=wanted, found=node)
        amounts: dict[str, int] = {}
        for name, quantity in each.quantities("resources").items():
            amount = amount_of(name, Quantity.parse(quantity))
            if amount < 0:
                raise InvalidObject(each.path(name), wanted="0 or more", found=quantity)
            if amount:
                amounts[name] = amount
        if amounts:
            numa[node] = amounts
    return Allocation(cpus, tuple(sorted(numa.items())))


def allocation_of(pod: ClusterPod) -> Allocation:
    """Return what a pod has: no more than it requests, whatever its annotation says.

    A list of more CPUs counts as none, as the node agent refuses it. The pod of a Reservation has
    what consumers have left, whatever is left of its requests.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    text = annotation(pod, RESOURCE_STATUS)
    if not text:
        return NO_ALLOCATION
    found, requests = parse_allocation(text), dict(pod.spec.requests)
    if pod.name.startswith(RESERVE_POD_NAME):
        return found
    asked = requests.get(_CPU, 0)
    is_granted = len(found.cpus) * 1000 <= asked and not asked % 1000
    cpus = found.cpus if is_granted else frozenset()
    left, numa = dict(requests), []
    for node, amounts in found.numa:
        kept = {}
        for name, amount in amounts.items():
            if taken := min(amount, left.get(name, 0)):
                kept[name] = taken
                left[name] -= taken
        if kept:
            numa.append((node, kept))
    return Allocation(cpus, tuple(numa))


def annotation(pod: ClusterPod, key: str) -> str:
    """The text of a pod's annotation; "": it has none."""
    for name, text in pod.annotations:
        if name == key:
            return text
    return ""


def exclusive_policy(pod: ClusterPod) -> ExclusivePolicy:
    """The exclusive policy that a pod asks for; one that is none counts as none."""
    text = annotation(pod, RESOURCE_SPEC)
    return _exclusive_policy(text) if text else ExclusivePolicy.NONE


@lru_cache(maxsize=1024)
def _exclusive_policy(text: str) -> ExclusivePolicy:
    try:
        found = annotation_fields(text, RESOURCE_SPEC).text("preferredCPUExclusivePolicy")
    except InvalidObject:
        return ExclusivePolicy.NONE
    return ExclusivePolicy(found) if found in set(ExclusivePolicy) else ExclusivePolicy.NONE


def _holdings(pod: ClusterPod) -> tuple[Holding, ...]:
    if not pod.annotations or not pod.node or not (found := allocation_of(pod)):
        return ()
    return (Holding(pod.node, tuple(_amounts(found, exclusive_policy(pod)))),)


def with_allocation(pool: Pool, found: Allocation, exclusive: ExclusivePolicy) -> Pool:
    """The pool of a node with what one more pod has there."""
    allocated = dict(pool.allocated)
    for key, amount in _amounts(found, exclusive) if found else ():
        allocated[key] = allocated.get(key, 0) + amount
    return Pool(allocated, pool.requested, pool.pods, pool.members)


def _amounts(found: Allocation, exclusive: ExclusivePolicy) -> list[tuple[str, int]]:
    exclusive = exclusive if found.cpus else ExclusivePolicy.NONE
    nodes = ",".join(str(node) for node, _ in found.numa)
    amounts = [(f"{_POD}/{exclusive}/{format_cpulist(found.cpus)}/{nodes}", 1)]
    for node, each in found.numa:
        amounts += [(f"{_NUMA}/{node}/{name}", amount) for name, amount in each.items()]
    return amounts


def without_amounts(text: str, taken: Mapping[str, int]) -> str:
    """Return an annotation without what others have taken, as amounts of NUMA_HOLDINGS.

    Raises:
        InvalidObject: it is malformed.
    """
    found, gone = parse_allocation(text), Pool(taken, {}, 0, {})
    cpus = found.cpus.difference(*(one.cpus for one in held_sets(gone)))
    used, numa = held_amounts(gone), []
    for node, amounts in found.numa:
        of_node = used.get(node, {})
        left = {
            name: more
            for name, amount in amounts.items()
            if (more := amount - of_node.get(name, 0)) > 0
        }
        if left:
            numa.append((node, left))
    allocation = Allocation(cpus, tuple(numa))
    return json.dumps(status_document(allocation), separators=(",", ":")) if allocation else ""


NUMA_HOLDINGS = AccountKind(
    "numa-resources",
    _holdings,
    annotation=RESOURCE_STATUS,
    without=without_amounts,
    labels=frozenset(),
)
"""CPUs and amounts of NUMA nodes that pods hold; a pool is a node, by its name."""


@dataclass(frozen=True, slots=True)
class HeldSet:
    """CPUs and NUMA nodes of some pods that have the same."""

    cpus: frozenset[int]
    numa: frozenset[int]  # ids of NUMA nodes of which they have amounts
    exclusive: ExclusivePolicy
    pods: int


def held_sets(pool: Pool) -> Iterator[HeldSet]:
    """Yield the CPUs and NUMA nodes that pods of a node hold."""
    for key, pods in pool.allocated.items():
        if key.startswith(f"{_POD}/"):
            _, policy, cpus, nodes = key.split("/")
            yield HeldSet(
                parse_cpulist(cpus),
                frozenset(int(one) for one in nodes.split(",") if one),
                ExclusivePolicy(policy),
                pods,
            )


def held_amounts(pool: Pool) -> Zones:
    """Return the sums of what pods of a node hold, by NUMA node."""
    found: dict[int, dict[str, int]] = {}
    for key, amount in pool.allocated.items():
        if key.startswith(f"{_NUMA}/"):
            _, node, name = key.split("/", 2)
            found.setdefault(int(node), {})[name] = amount
    return found


def status_document(found: Allocation) -> dict[str, object]:
    """Return the value of the annotation resource-status."""
    document: dict[str, object] = {}
    if found.cpus:
        document["cpuset"] = format_cpulist(found.cpus)
    if found.numa:
        document["numaNodeResources"] = [
            {
                "node": node,
                "resources": {
                    name: quantity_text(name, amount) for name, amount in sorted(amounts.items())
                },
            }
            for node, amounts in found.numa
        ]
    return document


_BINARY = frozenset({"memory", "ephemeral-storage", "kubernetes.io/batch-memory"})


def quantity_text(name: str, amount: int) -> str:
    """Return an amount as Kubernetes writes it."""
    if name == _CPU:
        return str(Quantity.of_milli(amount))
    if name in _BINARY or name.startswith("hugepages-"):
        return str(Quantity.of_bytes(amount))
    return str(Quantity(amount * 10**9))
