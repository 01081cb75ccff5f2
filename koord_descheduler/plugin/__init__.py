"""The public plugin API: everything that a plugin of koord-descheduler may use.

Plugins import this module and koord.api, nothing else of the daemon.
"""

from koord.api.eviction import EvictionAnswer, EvictionOutcome
from koord.api.labelselector import LabelSelector, parse_selector_text
from koord.cluster.columns import Mask
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNode,
    ClusterPod,
    Condition,
    ContainerKind,
    ContainerState,
    DisruptionBudget,
    LabelSet,
    Owner,
    PodSpec,
    PreferredTerm,
    PriorityClass,
    ReportedAggregate,
    ReportedPodUsage,
    ReportedUsage,
    Selector,
    SpreadConstraint,
    Taint,
    Workload,
    selects,
)
from koord.cluster.hypothetical import HypotheticalMoves
from koord.cluster.kinds import UsageReport
from koord.cluster.predicates.fits import Fit, NodeRejectReason, fits
from koord.cluster.predicates.nodes import (
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    tolerates_taints,
)
from koord.cluster.predicates.spread import selector_of
from koord.cluster.state import ClusterState
from koord.cluster.view import View, WhatIf
from koord.cluster.workloads import Workloads, controller_of
from koord.component.config.componentconfig import Int32, Seconds, UInt, UInt32
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    Key,
    duplicate,
    invalid,
    invalid_duration,
    required,
    unsupported,
    warning,
)
from koord.component.plugins.args import takes_args
from koord.component.plugins.registry import PluginError
from koord.component.plugins.shared import SharedPart, SharedParts
from koord.kube.client import NODES, PODS, ApiClient, Resource
from koord.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    PatchRejected,
    TooManyRequests,
)
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.eviction import PodEvictions, read_rejection
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import MissingKind
from koord.kube.reflector import Change, ChangeKind, Watched
from koord.kube.transport import Deadline
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.flowcontrol import Backoff
from koord.util.goformat import format_duration as duration_text
from koord.util.goformat import parse_float
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LimitedLog, LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.config.pluginargs import (
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
from koord_descheduler.config.v1alpha2 import GROUP_VERSION
from koord_descheduler.framework.decisions import (
    Action,
    Decision,
    Decisions,
    DecisionSource,
    Findings,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.framework.evictions import EvictionCandidate, Evictions, PureDeschedulePlugin
from koord_descheduler.framework.evictor import EvictorProxy, eviction_reason
from koord_descheduler.framework.handle import (
    FilterFunc,
    Handle,
    Informers,
    Migration,
    Migrations,
    Services,
    combine,
    pod_filter,
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
from koord_descheduler.framework.profile import PluginFactory, PluginRegistry
from koord_descheduler.rules import evictorfilter
from koord_descheduler.rules.evictorfilter import (
    EvictorFilter,
    EvictorRules,
    annotation,
    evictor_filter,
    is_deleting,
    is_mirror,
    is_of_daemon_set,
    is_static,
    is_system_critical,
    not_selected,
    priority_of,
)
from koord_descheduler.rules.nodefit import (
    NodeFit,
    NodeFitResult,
    nodes_matching,
    nodes_named,
    view_without_pod,
)
from koord_descheduler.rules.podorder import (
    OrderKey,
    PodOrder,
    eviction_order,
    kube_qos_of,
    least_important,
    priority_class_of,
    qos_of,
)
from koord_descheduler.rules.utilization import Move, MoveSource, Utilization, plan_moves

__all__ = [
    "GROUP_VERSION",
    "NODES",
    "OK",
    "PODS",
    "Action",
    "AffinityTerm",
    "AlreadyExists",
    "ApiClient",
    "ApiError",
    "Backoff",
    "BalancePlugin",
    "Change",
    "ChangeKind",
    "Clock",
    "ClusterNode",
    "ClusterPod",
    "ClusterState",
    "Condition",
    "Conflict",
    "ContainerKind",
    "ContainerState",
    "Deadline",
    "Decision",
    "DecisionSource",
    "Decisions",
    "DeschedulePlugin",
    "DisruptionBudget",
    "Event",
    "EventType",
    "EvictOptions",
    "EvictPlugin",
    "EvictionAnswer",
    "EvictionCandidate",
    "EvictionOutcome",
    "Evictions",
    "Evictor",
    "EvictorFilter",
    "EvictorProxy",
    "EvictorRules",
    "FieldError",
    "FieldPath",
    "FilterFunc",
    "FilterPlugin",
    "Findings",
    "Fit",
    "Handle",
    "HealthStatus",
    "HypotheticalMoves",
    "Informers",
    "Int32",
    "InvalidObject",
    "Key",
    "KoordError",
    "KubeError",
    "LabelSelector",
    "LabelSet",
    "LimitedLog",
    "LogState",
    "Mask",
    "Migration",
    "Migrations",
    "MissingKind",
    "Move",
    "MoveSource",
    "Namespaces",
    "NodeDecision",
    "NodeFit",
    "NodeFitResult",
    "NodeRejectReason",
    "NotFound",
    "ObjectRef",
    "OptionError",
    "OrderKey",
    "Owner",
    "PartHealth",
    "PatchRejected",
    "Percents",
    "Plugin",
    "PluginError",
    "PluginFactory",
    "PluginRegistry",
    "PodDecision",
    "PodEvictions",
    "PodOrder",
    "PodSelector",
    "PodSpec",
    "PreferredTerm",
    "PriorityClass",
    "PriorityThreshold",
    "PureDeschedulePlugin",
    "Relief",
    "ReportedAggregate",
    "ReportedPodUsage",
    "ReportedUsage",
    "Resource",
    "Seconds",
    "Selector",
    "Services",
    "SharedInformer",
    "SharedPart",
    "SharedParts",
    "SpreadConstraint",
    "Status",
    "Stop",
    "Taint",
    "TooManyRequests",
    "UInt",
    "UInt32",
    "UsageReport",
    "Utilization",
    "View",
    "Watched",
    "WhatIf",
    "Workload",
    "Workloads",
    "annotation",
    "check_label_selector",
    "check_namespaces",
    "check_percents",
    "check_pod_selectors",
    "check_pods",
    "check_selector_text",
    "check_unique",
    "combine",
    "controller_of",
    "duplicate",
    "duration_text",
    "eviction_order",
    "eviction_reason",
    "evictor_filter",
    "evictorfilter",
    "fits",
    "get_logger",
    "invalid",
    "invalid_duration",
    "is_deleting",
    "is_mirror",
    "is_of_daemon_set",
    "is_schedulable",
    "is_static",
    "is_system_critical",
    "kube_qos_of",
    "least_important",
    "matches_node_affinity",
    "matches_terms",
    "nodes_matching",
    "nodes_named",
    "not_selected",
    "parse_float",
    "parse_selector_text",
    "plan_moves",
    "pod_filter",
    "pods_in",
    "priority_class_of",
    "priority_of",
    "qos_of",
    "read_rejection",
    "required",
    "selector_of",
    "selects",
    "takes_args",
    "tolerates_taints",
    "unsupported",
    "view_without_pod",
    "warning",
]
