"""The public plugin API: everything that a plugin of koord-descheduler may use.

Plugins import this module and koord.api, nothing else of the daemon.
"""

from koord.api.eviction import EvictionAnswer, EvictionOutcome
from koord.api.labelselector import LabelSelector
from koord.api.selectortext import parse_selector_text
from koord.cluster.columns import Mask
from koord.cluster.decoding import UsageReport
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
    Selector,
    SpreadConstraint,
    Taint,
    Workload,
    selects,
)
from koord.cluster.predicates.fits import Fit, Misfit, fits
from koord.cluster.predicates.moves import Moves
from koord.cluster.predicates.nodes import (
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    tolerates_taints,
)
from koord.cluster.predicates.spread import selector_of
from koord.cluster.state import ClusterState
from koord.cluster.usage import AggregatedUsage, PodMetric, Usage
from koord.cluster.view import View, WhatIf
from koord.cluster.workloads import Workloads, controller_of
from koord.component.config.faults import (
    Fault,
    FieldPath,
    Key,
    duplicate,
    invalid,
    invalid_duration,
    required,
    unsupported,
    warning,
)
from koord.component.config.typed import Int32, Seconds, UInt, UInt32
from koord.component.plugins.args import takes_args
from koord.component.plugins.errors import PluginError
from koord.component.plugins.shared import SharedPart, SharedParts
from koord.kube.client import ApiClient
from koord.kube.deadline import Deadline
from koord.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    KubeError,
    NotFound,
    PatchRefused,
    TooManyRequests,
)
from koord.kube.eventobjects import Event, EventType, ObjectRef
from koord.kube.eviction import PodEvictions, read_refusal
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.reflector import Watched
from koord.kube.resource import NODES, PODS, Resource
from koord.kube.store import Change, ChangeKind
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.goduration import format as duration_text
from koord.util.health import OK, PartHealth
from koord.util.health import Status as HealthStatus
from koord.util.logs import LimitedLog, LogState, get_logger
from koord.util.stop import Stop
from koord_descheduler.config.pluginargs import kubernetes as kubernetes_args
from koord_descheduler.config.pluginargs.balance import (
    BinPackStrategy,
    CustomPriorityArgs,
    FragmentationAwareArgs,
    PriorityLevel,
    PriorityMode,
    ScaleDownBinPackArgs,
)
from koord_descheduler.config.pluginargs.lownodeload import (
    AggregationType,
    AnomalyCondition,
    LowNodeLoadArgs,
    NodePool,
    Planner,
)
from koord_descheduler.config.pluginargs.migration import (
    EvictionGate,
    EvictionPolicy,
    MigrationControllerArgs,
    ObjectLimiter,
)
from koord_descheduler.config.pluginargs.parts import (
    Namespaces,
    Percents,
    PodSelector,
    PriorityThreshold,
    check_label_selector,
    check_namespaces,
    check_percents,
    check_pod_selectors,
    check_selector_text,
    check_unique,
)
from koord_descheduler.framework.decisions import (
    Action,
    Decision,
    Decisions,
    DecisionSource,
    Findings,
    NodeDecision,
    PodDecision,
)
from koord_descheduler.framework.evictions import Choice, Evictions
from koord_descheduler.framework.evictor import EvictorProxy
from koord_descheduler.framework.filters import FilterFunc, combine, pod_filter, pods_in
from koord_descheduler.framework.handle import Handle, Informers, Services
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictOptions,
    Evictor,
    EvictPlugin,
    FilterPlugin,
    Plugin,
    Relief,
)
from koord_descheduler.framework.judge import JudgePlugin
from koord_descheduler.framework.migrations import Migration, Migrations
from koord_descheduler.framework.registry import PluginFactory, PluginRegistry
from koord_descheduler.framework.status import Status
from koord_descheduler.framework.turn import because
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
    priority_of,
)
from koord_descheduler.rules.nodefit import Fitting, NodeFit, nodes_matching, nodes_named, without
from koord_descheduler.rules.podchoice import left_out
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
    "NODES",
    "OK",
    "PODS",
    "Absent",
    "Action",
    "AffinityTerm",
    "AggregatedUsage",
    "AggregationType",
    "AlreadyExists",
    "AnomalyCondition",
    "ApiClient",
    "ApiError",
    "Backoff",
    "BalancePlugin",
    "BinPackStrategy",
    "Change",
    "ChangeKind",
    "Choice",
    "Clock",
    "ClusterNode",
    "ClusterPod",
    "ClusterState",
    "Condition",
    "Conflict",
    "ContainerKind",
    "ContainerState",
    "CustomPriorityArgs",
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
    "EvictionGate",
    "EvictionOutcome",
    "EvictionPolicy",
    "Evictions",
    "Evictor",
    "EvictorFilter",
    "EvictorProxy",
    "EvictorRules",
    "Fault",
    "FieldPath",
    "FilterFunc",
    "FilterPlugin",
    "Findings",
    "Fit",
    "Fitting",
    "FragmentationAwareArgs",
    "Handle",
    "HealthStatus",
    "Informers",
    "Int32",
    "InvalidObject",
    "JudgePlugin",
    "Key",
    "KoordError",
    "KubeError",
    "LabelSelector",
    "LabelSet",
    "LimitedLog",
    "LogState",
    "LowNodeLoadArgs",
    "Mask",
    "Migration",
    "MigrationControllerArgs",
    "Migrations",
    "Misfit",
    "Move",
    "MoveSource",
    "Moves",
    "Namespaces",
    "NodeDecision",
    "NodeFit",
    "NodePool",
    "NotFound",
    "ObjectLimiter",
    "ObjectRef",
    "OptionError",
    "OrderKey",
    "Owner",
    "PartHealth",
    "PatchRefused",
    "Percents",
    "Planner",
    "Plugin",
    "PluginError",
    "PluginFactory",
    "PluginRegistry",
    "PodDecision",
    "PodEvictions",
    "PodMetric",
    "PodOrder",
    "PodSelector",
    "PodSpec",
    "PreferredTerm",
    "PriorityClass",
    "PriorityLevel",
    "PriorityMode",
    "PriorityThreshold",
    "Relief",
    "Resource",
    "ScaleDownBinPackArgs",
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
    "Usage",
    "UsageReport",
    "Utilization",
    "View",
    "Watched",
    "WhatIf",
    "Workload",
    "Workloads",
    "annotation",
    "because",
    "check_label_selector",
    "check_namespaces",
    "check_percents",
    "check_pod_selectors",
    "check_selector_text",
    "check_unique",
    "combine",
    "controller_of",
    "duplicate",
    "duration_text",
    "eviction_order",
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
    "kubernetes_args",
    "least_important",
    "left_out",
    "matches_node_affinity",
    "matches_terms",
    "nodes_matching",
    "nodes_named",
    "parse_selector_text",
    "plan_moves",
    "pod_filter",
    "pods_in",
    "priority_class_of",
    "priority_of",
    "qos_of",
    "read_refusal",
    "required",
    "selector_of",
    "selects",
    "takes_args",
    "tolerates_taints",
    "unsupported",
    "warning",
    "without",
]
