"""MidResource: mid-cpu and mid-memory, what prod pods have requested and will not use.

Source: Koordinator, noderesource/plugins/midresource.
"""

from koord.api.node import NODE_RESERVATION
from koord.api.nodemetric import Amounts
from koord.api.qos import PRIORITY_CLASS_LABEL, QOS_LABEL
from koord.api.slocontroller import RATIO_LABELS, STRATEGY_ANNOTATION
from koord_manager.plugin import (
    Calculation,
    Handle,
    NodeFacts,
    NodeResourcePlugin,
    Offered,
    Term,
    reads,
)
from koord_manager_plugins.colocation.amounts import (
    MID_CPU,
    MID_MEMORY,
    NOTHING,
    capacity,
    percent,
    prod_requests,
    reserved,
    system_usage,
    usage_amounts,
)

STATIC = "static"  # midReclaimMode: a fixed share of the node


@reads(
    node_annotations={STRATEGY_ANNOTATION: 65_536, NODE_RESERVATION: 4096},
    node_labels=RATIO_LABELS,
    pod_labels=(QOS_LABEL, PRIORITY_CLASS_LABEL),
)
class MidResource(NodeResourcePlugin):
    """Offers mid-cpu and mid-memory on nodes."""

    order = 30

    def __init__(self, args: None, handle: Handle) -> None:
        """It has no arguments: the strategy is in slo-controller-config."""

    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        why = "" if node.strategy.enable else "colocation is disabled"
        why = why or node.stale or ("" if node.has_capacity else "the node says no capacity")
        if why:
            none = Offered(amount=None, reason=why)
            return Calculation(resources={MID_CPU: none, MID_MEMORY: none})
        return Calculation(resources=mid_resources(node))


def mid_resources(node: NodeFacts) -> dict[str, Offered]:
    """Return what a node offers to mid pods: milli-cores and bytes."""
    strategy, whole = node.strategy, capacity(node)
    cap = percent(whole, strategy.mid_cpu_threshold_percent, strategy.mid_memory_threshold_percent)
    if strategy.mid_reclaim_mode == STATIC:
        share = percent(
            whole,
            strategy.mid_static_cpu_reserved_percent,
            strategy.mid_static_memory_reserved_percent,
        )
        parts = [("static share of the capacity", share)]
    else:
        reclaimable, unallocated = _reclaimable(node, whole), _unallocated(node, whole)
        share = percent(
            unallocated, strategy.mid_unallocated_percent, strategy.mid_unallocated_percent
        )
        parts = [("reclaimable of prod pods", reclaimable), ("share of what is unallocated", share)]
    cpu = _offered([(name, one.milli_cores) for name, one in parts], cap.milli_cores)
    memory = _offered([(name, one.memory_bytes) for name, one in parts], cap.memory_bytes)
    return {MID_CPU: cpu, MID_MEMORY: memory}


def _reclaimable(node: NodeFacts, whole: Amounts) -> Amounts:
    """What prod pods will not use of their requests, as far as the node does not use it now."""
    report = node.report
    if report is None or report.usage is None:
        return NOTHING
    return usage_amounts(report.reclaimable).lower(whole.less(usage_amounts(report.usage)))


def _unallocated(node: NodeFacts, whole: Amounts) -> Amounts:
    base = system_usage(node, of_prod_only=True).higher(reserved(node))
    return whole.less(base + prod_requests(node))


def _offered(parts: list[tuple[str, int]], cap: int) -> Offered:
    terms = [Term(name, amount) for name, amount in parts]
    total = sum(one.amount for one in terms)
    if total > cap:
        terms.append(Term("cap of midThresholdPercent", cap - total))
    return Offered(amount=min(total, cap), terms=tuple(terms), is_measured=True)
