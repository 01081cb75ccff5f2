"""The public plugin API: everything of koord-descheduler that a plugin may use.

Plugins import this module, koord.plugin and koord.api, nothing else of the daemon. testing is the
test kit. docs/writing-descheduler-plugins.md is a tutorial.
"""

from koord.cluster.columns import Mask
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNode,
    ClusterPod,
    ContainerKind,
    ContainerState,
    DisruptionBudget,
    LabelSet,
    Owner,
    PodSpec,
    ReportedAggregate,
    ReportedUsage,
    Selector,
    SpreadConstraint,
    Taint,
    selects,
)
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.keptfields import KeptFields, reads
from koord.cluster.kinds import UsageReport
from koord.cluster.placement import controller_of
from koord.cluster.predicates import fits
from koord.cluster.predicates.nodes import (
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    tolerates_taints,
)
from koord.cluster.predicates.spread import selector_of
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.component.plugins.shared import SharedPart
from koord.kube.eviction import PodEvictions, read_rejection
from koord_descheduler.config import (
    GROUP_VERSION,
    Namespaces,
    Percents,
    PodSelector,
    PriorityThreshold,
    check_label_selector,
    check_namespaces,
    check_percents,
    check_pod_selectors,
    check_pods,
    check_selector_text,
    check_unique,
)
from koord_descheduler.framework.evictor import (
    Action,
    Decision,
    EvictorProxy,
    Findings,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.framework.handle import (
    EvictionCandidate,
    Evictions,
    Handle,
    Migration,
    PureDeschedulePlugin,
    Services,
    pods_in,
)
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictOptions,
    Evictor,
    EvictPlugin,
    FilterPlugin,
    Plugin,
    Relief,
    Status,
)
from koord_descheduler.framework.profile import PluginRegistry
from koord_descheduler.rules import evictorfilter
from koord_descheduler.rules.evictorfilter import (
    EVICTOR_FILTER_FIELDS,
    POD_ORDER_FIELDS,
    EvictorFilter,
    EvictorRules,
    OrderKey,
    PodOrder,
    annotation,
    eviction_order,
    evictor_filter,
    is_deleting,
    is_mirror,
    is_of_daemon_set,
    is_static,
    is_system_critical,
    least_important,
    not_selected,
)
from koord_descheduler.rules.hardware import PART_KINDS, HardwarePart, parts_wanted
from koord_descheduler.rules.nodefit import NodeFit, nodes_matching, nodes_named
from koord_descheduler.rules.utilization import Move, MoveSource, Utilization, plan_moves

__all__ = [
    "EVICTOR_FILTER_FIELDS",
    "GROUP_VERSION",
    "PART_KINDS",
    "POD_ORDER_FIELDS",
    "Action",
    "AffinityTerm",
    "BalancePlugin",
    "ClusterNode",
    "ClusterPod",
    "ClusterState",
    "ContainerKind",
    "ContainerState",
    "Decision",
    "DeschedulePlugin",
    "DisruptionBudget",
    "EvictOptions",
    "EvictPlugin",
    "EvictionCandidate",
    "Evictions",
    "Evictor",
    "EvictorFilter",
    "EvictorProxy",
    "EvictorRules",
    "FilterPlugin",
    "Findings",
    "Handle",
    "HardwarePart",  # of handle.services.hardware.parts
    "HypotheticalCluster",
    "KeptFields",  # declarations that several plugins share
    "LabelSet",
    "Mask",
    "Migration",
    "Move",
    "MoveSource",
    "Namespaces",
    "NodeDecision",
    "NodeFit",
    "OrderKey",
    "Owner",
    "Percents",
    "Plugin",  # base of a plugin with none of the other interfaces
    "PluginRegistry",
    "PodDecision",
    "PodEvictions",
    "PodOrder",
    "PodSelector",
    "PodSpec",
    "PriorityThreshold",
    "PureDeschedulePlugin",
    "Relief",
    "ReportedAggregate",
    "ReportedUsage",
    "Selector",
    "Services",
    "SharedPart",  # base of a part in handle.services.shared
    "SpreadConstraint",
    "Status",
    "Taint",
    "UsageReport",
    "Utilization",
    "View",
    "annotation",
    "check_label_selector",
    "check_namespaces",
    "check_percents",
    "check_pod_selectors",
    "check_pods",
    "check_selector_text",
    "check_unique",
    "controller_of",
    "eviction_order",
    "evictor_filter",
    "evictorfilter",
    "fits",
    "is_deleting",
    "is_mirror",
    "is_of_daemon_set",
    "is_schedulable",
    "is_static",
    "is_system_critical",
    "least_important",
    "matches_node_affinity",
    "matches_terms",
    "nodes_matching",
    "nodes_named",
    "not_selected",
    "parts_wanted",
    "plan_moves",
    "pods_in",
    "read_rejection",
    "reads",
    "selector_of",
    "selects",
    "tolerates_taints",
]
