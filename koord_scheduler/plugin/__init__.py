"""The public plugin API of koord-scheduler: extension points, statuses, events, pods and nodes.

Its modules have what fewer plugins need: vector (forms over all nodes at once, and the rules that
they share), preemption, koordinator (extensions of the framework, the account, plans of groups) and
storage. testing is the test kit. Plugins import these, koord.plugin and koord.api, nothing else of
the daemon. docs/writing-scheduler-plugins.md is a tutorial.
"""

from koord.cluster.facts import PODS as POD_COUNT
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    LabelSet,
    NodeTerm,
    PodSpec,
    PreferredTerm,
    ReportedUsage,
    Selector,
    SpreadConstraint,
    selects,
)
from koord.cluster.keptfields import KeptFields, reads
from koord.cluster.kinds import NODE, NODE_METRIC, POD, UsageReport
from koord.cluster.pod_counts import AffinityTermKind
from koord.cluster.predicates.nodes import UNSCHEDULABLE as UNSCHEDULABLE_TAINT
from koord.cluster.predicates.nodes import (
    affinity_allows,
    intolerable_preferences,
    node_matches_terms,
    ports_conflict,
    term_matches,
    tolerates,
)
from koord.cluster.selectors import is_label_requirement, is_name_requirement
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.component.plugins.shared import SharedPart
from koord.util.timebudget import in_time, is_time_over, remaining_time
from koord_scheduler.framework.customresources import FollowedResource
from koord_scheduler.framework.handle import Handle, Services
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    Changes,
    EnqueueExtensions,
    FilterPlugin,
    NormalizeScorePlugin,
    PermitPlugin,
    Plugin,
    PodChanges,
    PodClaims,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindExtensions,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterExtensions,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
    claims_pods_with,
    pod_changes,
)
from koord_scheduler.framework.nominator import WaitingPod
from koord_scheduler.framework.profile import PluginRegistry
from koord_scheduler.framework.status import (
    MAX_NODE_SCORE,
    Code,
    CycleState,
    NodeScore,
    PostFilterResult,
    PreFilterResult,
    StateData,
    Status,
    Wait,
)
from koord_scheduler.framework.types import (
    POD_DELETED,
    Action,
    ClusterEvent,
    EventResource,
    HintedEvent,
    NodeInfo,
    QueuedPod,
    QueueingHint,
    about_itself,
)

__all__ = [
    "MAX_NODE_SCORE",
    "NODE",
    "NODE_METRIC",
    "POD",
    "POD_COUNT",
    "POD_DELETED",
    "UNSCHEDULABLE_TAINT",
    "Action",
    "AffinityTerm",
    "AffinityTermKind",
    "BindPlugin",
    "Changes",
    "ClusterEvent",
    "ClusterNamespace",
    "ClusterNode",
    "ClusterPod",
    "ClusterState",
    "Code",
    "CycleState",
    "EnqueueExtensions",
    "EventResource",
    "FilterPlugin",
    "FollowedResource",  # the result of custom_resources.follow
    "Handle",
    "HintedEvent",
    "KeptFields",  # declarations that several plugins share
    "LabelSet",
    "NodeInfo",
    "NodeScore",
    "NodeTerm",
    "NormalizeScorePlugin",
    "PermitPlugin",  # an extension point of Kubernetes
    "Plugin",  # base of a plugin with interfaces of koordinator only
    "PluginRegistry",  # for plugins without an entry point, as in tests
    "PodChanges",
    "PodClaims",
    "PodSpec",
    "PostBindPlugin",
    "PostFilterPlugin",
    "PostFilterResult",
    "PreBindExtensions",
    "PreBindPlugin",
    "PreEnqueuePlugin",
    "PreFilterExtensions",
    "PreFilterPlugin",
    "PreFilterResult",
    "PreScorePlugin",
    "PreferredTerm",
    "QueueSortPlugin",
    "QueuedPod",
    "QueueingHint",
    "ReportedUsage",
    "ReservePlugin",
    "ScorePlugin",
    "Selector",
    "Services",
    "SharedPart",
    "SpreadConstraint",
    "StateData",  # what a CycleState keeps
    "Status",
    "UsageReport",
    "View",
    "Wait",  # answer of a PermitPlugin
    "WaitingPod",  # a pod that a PermitPlugin has wait
    "about_itself",
    "affinity_allows",
    "claims_pods_with",
    "in_time",
    "intolerable_preferences",
    "is_label_requirement",
    "is_name_requirement",
    "is_time_over",
    "node_matches_terms",
    "pod_changes",
    "ports_conflict",
    "reads",
    "remaining_time",
    "selects",
    "term_matches",
    "tolerates",
]
