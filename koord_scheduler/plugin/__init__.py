"""The public plugin API: everything that a plugin of koord-scheduler may use.

Plugins import this module and koord.api, nothing else of the daemon.
"""

from koord.cluster.census import Wish
from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.decoder import Kind
from koord.cluster.decoding import NODE, NODE_METRIC, POD, UsageReport
from koord.cluster.facts import PODS as POD_COUNT
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    NodeTerm,
    PodSpec,
    PreferredAffinityTerm,
    PreferredTerm,
    Selector,
    SpreadConstraint,
    selects,
)
from koord.cluster.predicates.nodes import UNSCHEDULABLE as UNSCHEDULABLE_TAINT
from koord.cluster.predicates.nodes import (
    affinity_allows,
    has_name,
    intolerable_preferences,
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    preferences_met,
    term_matches,
    tolerates,
    tolerates_taints,
    untolerated_preferences,
)
from koord.cluster.predicates.podaffinity import (
    Affinity,
    AntiAffinity,
    Domains,
    Opposition,
    WeighedTerms,
    matches_pod_affinity,
    matches_pod_anti_affinity,
)
from koord.cluster.predicates.ports import has_free_ports, ports_conflict
from koord.cluster.predicates.resources import has_room
from koord.cluster.predicates.spread import (
    Spread,
    counted_nodes,
    keeps_spread,
    labelled_by,
    pods_counted,
    selector_of,
    spreads,
)
from koord.cluster.predicates.volumes import reaches_volumes
from koord.cluster.selectors import is_label_requirement, is_name_requirement
from koord.cluster.state import ClusterState
from koord.cluster.usage import AggregatedUsage, PodMetric, Usage
from koord.cluster.view import View, WhatIf
from koord.component.config.faults import (
    Fault,
    FieldPath,
    Key,
    duplicate,
    invalid,
    required,
    unsupported,
    warning,
)
from koord.component.config.typed import Int32, Seconds
from koord.component.plugins.args import takes_args
from koord.component.plugins.errors import PluginError
from koord.component.plugins.shared import SharedPart, SharedParts
from koord.kube.access.config import ApiConfig
from koord.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from koord.kube.deadline import Deadline
from koord.kube.errors import Conflict, KubeError, NotFound, TooManyRequests, Unreachable
from koord.kube.eventobjects import Event, EventType, ObjectRef
from koord.kube.informer import SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.resource import PODS, Resource
from koord.kube.store import Change, ChangeKind
from koord.kube.transport import Call, Transport
from koord.kube.transport import Limits as RequestLimits
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, PartHealth
from koord.util.health import Status as HealthStatus
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord.util.timebudget import OutOfTime, check_time, in_time, rest, time_is_over
from koord_scheduler.framework.calls import PointFailed
from koord_scheduler.framework.changes import Changes, OnChange
from koord_scheduler.framework.cyclestate import (
    CycleState,
    StateData,
    StateNotFound,
    WrongStateType,
)
from koord_scheduler.framework.diagnosis import ABSENT, Diagnosis, NodeStatuses
from koord_scheduler.framework.events import (
    POD_DELETED,
    WILDCARD,
    Action,
    ClusterEvent,
    EventResource,
    HintedEvent,
    HintFn,
    QueueingHint,
    about_itself,
)
from koord_scheduler.framework.extension.auditor import (
    AuditedWorkload,
    AuditRecord,
    WorkloadAuditor,
    workload_of,
)
from koord_scheduler.framework.extension.control import SchedulerControl
from koord_scheduler.framework.extension.handlers import (
    FailedPod,
    FailureFilter,
    FailureFilters,
    ForgetHandlers,
    StartHook,
    StartHooks,
)
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    NetworkTopology,
    NetworkTree,
    TopologyNode,
)
from koord_scheduler.framework.extension.numa import (
    NUMATopologyHint,
    NUMATopologyHintProvider,
    NUMATopologyPolicy,
    TopologyManager,
)
from koord_scheduler.framework.extension.plans import FindOneNodePlugin, PreferNodesPlugin
from koord_scheduler.framework.extension.podchanges import (
    PodChanges,
    PreBindExtensions,
    pod_changes,
)
from koord_scheduler.framework.extension.pods import NextPodPlugin, ResizePodPlugin
from koord_scheduler.framework.extension.providers import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    InformerFactoryProvider,
    PluginRequest,
    PrivateInformer,
)
from koord_scheduler.framework.extension.reservations import (
    Reservation,
    ReservationCache,
    ReservationFilterPlugin,
    ReservationNominator,
    ReservationPreAllocationRestorePlugin,
    ReservationPreBindPlugin,
    ReservationRestorePlugin,
    ReservationScore,
    ReservationScoreExtensions,
    ReservationScorePlugin,
)
from koord_scheduler.framework.extension.reserved import ReservedRoom
from koord_scheduler.framework.extension.suggestions import Suggestion, SuggestionType, suggest
from koord_scheduler.framework.extension.transformers import (
    FilterTransformer,
    PostFilterTransformer,
    PreFilterTransformer,
    SchedulingTransformer,
    ScoreTransformer,
    Transformed,
)
from koord_scheduler.framework.handle import Handle, NodeFilters, Services
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    EnqueueExtensions,
    FilterPlugin,
    NormalizeScorePlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodeinfo import NodeInfo, nodes_of
from koord_scheduler.framework.nodewhatif import NodeWhatIf
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profiles.registry import PluginFactory, PluginRegistry
from koord_scheduler.framework.queuedpod import QueuedPod
from koord_scheduler.framework.results import (
    MAX_NODE_SCORE,
    MIN_NODE_SCORE,
    NodeScore,
    Numbers,
    PostFilterResult,
    PreFilterResult,
    Scores,
    Verdicts,
    Wait,
    default_normalize,
)
from koord_scheduler.framework.status import Code, Status
from koord_scheduler.framework.waitingpods import WaitingPod, WaitingPods
from koord_scheduler.rules.freetable import FreeTable
from koord_scheduler.rules.insufficient import Demand, demand_of, shortage_at, shortages
from koord_scheduler.rules.preemption import (
    BudgetsByNamespace,
    Candidate,
    LowerPods,
    NodeTrial,
    by_namespace,
    candidates_wanted,
    choose,
    find_victims,
    may_preempt,
)
from koord_scheduler.rules.resourcescores import (
    Balanced,
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
    Scorer,
)
from koord_scheduler.rules.resourceuse import (
    Use,
    UseColumns,
    is_extended,
    pod_amount,
    resource_counts,
    use_of_all,
    use_of_node,
)
from koord_scheduler.rules.resourceweights import ResourceSpec, weighted

__all__ = [
    "ABSENT",
    "CLUSTER_LAYER",
    "MAX_NODE_SCORE",
    "MERGE_PATCH",
    "MIN_NODE_SCORE",
    "NODE",
    "NODE_LAYER",
    "NODE_METRIC",
    "OK",
    "POD",
    "PODS",
    "POD_COUNT",
    "POD_DELETED",
    "STRATEGIC_MERGE_PATCH",
    "UNSCHEDULABLE_TAINT",
    "WILDCARD",
    "APIServiceProvider",
    "Absent",
    "Action",
    "Affinity",
    "AffinityTerm",
    "AggregatedUsage",
    "AntiAffinity",
    "ApiConfig",
    "AuditRecord",
    "AuditedWorkload",
    "Balanced",
    "BindPlugin",
    "BudgetsByNamespace",
    "Call",
    "Candidate",
    "Change",
    "ChangeKind",
    "Changes",
    "Clock",
    "ClusterEvent",
    "ClusterNamespace",
    "ClusterNode",
    "ClusterPod",
    "ClusterState",
    "Code",
    "CodedColumn",
    "Conflict",
    "ControllerProvider",
    "CycleState",
    "Deadline",
    "Demand",
    "Diagnosis",
    "DisruptionBudget",
    "Domains",
    "Endpoint",
    "EnqueueExtensions",
    "Event",
    "EventResource",
    "EventType",
    "FailedPod",
    "FailureFilter",
    "FailureFilters",
    "Fault",
    "FieldPath",
    "FilterPlugin",
    "FilterTransformer",
    "FindOneNodePlugin",
    "ForgetHandlers",
    "FreeTable",
    "Handle",
    "HealthStatus",
    "HintFn",
    "HintedEvent",
    "InformerFactoryProvider",
    "Int32",
    "Key",
    "Kind",
    "KoordError",
    "KubeError",
    "LeastAllocated",
    "LowerPods",
    "Mask",
    "MostAllocated",
    "NUMATopologyHint",
    "NUMATopologyHintProvider",
    "NUMATopologyPolicy",
    "NetworkTopology",
    "NetworkTree",
    "NextPodPlugin",
    "NodeFilters",
    "NodeInfo",
    "NodeScore",
    "NodeStatuses",
    "NodeTerm",
    "NodeTrial",
    "NodeWhatIf",
    "Nominator",
    "NormalizeScorePlugin",
    "NotFound",
    "Numbers",
    "ObjectRef",
    "OnChange",
    "Opposition",
    "OutOfTime",
    "PartHealth",
    "PermitPlugin",
    "Plugin",
    "PluginError",
    "PluginFactory",
    "PluginRegistry",
    "PluginRequest",
    "PodChanges",
    "PodMetric",
    "PodSpec",
    "PointFailed",
    "PostBindPlugin",
    "PostFilterPlugin",
    "PostFilterResult",
    "PostFilterTransformer",
    "PreBindExtensions",
    "PreBindPlugin",
    "PreEnqueuePlugin",
    "PreFilterExtensions",
    "PreFilterPlugin",
    "PreFilterResult",
    "PreFilterTransformer",
    "PreScorePlugin",
    "PreferNodesPlugin",
    "PreferredAffinityTerm",
    "PreferredTerm",
    "PrivateInformer",
    "QueueSortPlugin",
    "QueuedPod",
    "QueueingHint",
    "RequestLimits",
    "RequestedToCapacityRatio",
    "Reservation",
    "ReservationCache",
    "ReservationFilterPlugin",
    "ReservationNominator",
    "ReservationPreAllocationRestorePlugin",
    "ReservationPreBindPlugin",
    "ReservationRestorePlugin",
    "ReservationScore",
    "ReservationScoreExtensions",
    "ReservationScorePlugin",
    "ReservePlugin",
    "ReservedRoom",
    "ResizePodPlugin",
    "Resource",
    "ResourceSpec",
    "SchedulerControl",
    "SchedulingTransformer",
    "ScorePlugin",
    "ScoreTransformer",
    "Scorer",
    "Scores",
    "Seconds",
    "Selector",
    "Services",
    "SharedInformer",
    "SharedPart",
    "SharedParts",
    "Spread",
    "SpreadConstraint",
    "StartHook",
    "StartHooks",
    "StateData",
    "StateNotFound",
    "Status",
    "Stop",
    "Suggestion",
    "SuggestionType",
    "TooManyRequests",
    "TopologyManager",
    "TopologyNode",
    "Transformed",
    "Transport",
    "Unreachable",
    "Usage",
    "UsageReport",
    "Use",
    "UseColumns",
    "VectorFilterPlugin",
    "VectorNormalizeScorePlugin",
    "VectorScorePlugin",
    "Verdicts",
    "View",
    "Wait",
    "WaitingPod",
    "WaitingPods",
    "WeighedTerms",
    "WhatIf",
    "Wish",
    "WorkloadAuditor",
    "WrongStateType",
    "about_itself",
    "affinity_allows",
    "by_namespace",
    "candidates_wanted",
    "check_time",
    "choose",
    "counted_nodes",
    "default_normalize",
    "demand_of",
    "duplicate",
    "find_victims",
    "get_logger",
    "has_free_ports",
    "has_name",
    "has_room",
    "in_time",
    "intolerable_preferences",
    "invalid",
    "is_extended",
    "is_label_requirement",
    "is_name_requirement",
    "is_schedulable",
    "keeps_spread",
    "labelled_by",
    "matches_node_affinity",
    "matches_pod_affinity",
    "matches_pod_anti_affinity",
    "matches_terms",
    "may_preempt",
    "nodes_of",
    "pod_amount",
    "pod_changes",
    "pods_counted",
    "ports_conflict",
    "preferences_met",
    "reaches_volumes",
    "required",
    "resource_counts",
    "rest",
    "selector_of",
    "selects",
    "shortage_at",
    "shortages",
    "spreads",
    "suggest",
    "takes_args",
    "term_matches",
    "time_is_over",
    "tolerates",
    "tolerates_taints",
    "unsupported",
    "untolerated_preferences",
    "use_of_all",
    "use_of_node",
    "warning",
    "weighted",
    "workload_of",
]
