"""Names for plugins as large as Koordinator's.

Its extensions of the framework: a plugin takes part by having an interface (endpoints, parts that
run with the leader, transformers, reservations, NUMA admission); the network between nodes and the
scheduler itself come from the handle. The account of what pods hold of quotas, devices or groups.
Plans of whole groups of pods. Source: Koordinator, pkg/scheduler/frameworkext.
"""

from koord.api.nodetopology import NUMATopologyPolicy
from koord.cluster.account import AccountKind, FrozenAccount
from koord.cluster.facts import Taint, Toleration
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.pools import Holding, Pool
from koord_scheduler.framework.extension.auditor import AuditRecord
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    NetworkTopology,
    NetworkTree,
    TopologyNode,
)
from koord_scheduler.framework.extension.numa import (
    NUMANodeUse,
    NUMATopologyHint,
    NUMATopologyHintProvider,
)
from koord_scheduler.framework.extension.providers import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    InformerFactoryProvider,
    NodePart,
    NodePartsProvider,
    PendingAdvice,
    PluginRequest,
    PrivateInformer,
)
from koord_scheduler.framework.extension.reservations import (
    NamedReservation,
    ReservationCache,
    ReservationFilterPlugin,
    ReservationNominator,
    ReservationPreAllocationRestorePlugin,
    ReservationPreBindPlugin,
    ReservationRestorePlugin,
    ReservationRoom,
    ReservationScore,
    ReservationScoreExtensions,
    ReservationScorePlugin,
)
from koord_scheduler.framework.extension.transformers import (
    FilterTransformer,
    FindOneNodePlugin,
    PostFilterTransformer,
    PreferNodesPlugin,
    PreFilterTransformer,
    ScoreTransformer,
    Transformed,
)
from koord_scheduler.framework.groupplan import (
    FeasibleNodes,
    GroupPlan,
    GroupPlanner,
    NodeOrder,
    NoGroupPlan,
    PlannedReservePlugin,
    PodGroupPlugin,
)
from koord_scheduler.framework.handle import SchedulerControl
from koord_scheduler.framework.interfaces import FailedPod, NextPodPlugin, ResizePodPlugin
from koord_scheduler.framework.status import Suggestion, SuggestionType, suggest

__all__ = [
    "CLUSTER_LAYER",  # layer of a TopologyNode
    "NODE_LAYER",  # layer of a TopologyNode
    "APIServiceProvider",
    "AccountKind",  # declares what pods hold of a kind of pools
    "AuditRecord",  # argument of handle.services.auditor.record()
    "ControllerProvider",  # interface of Koordinator's providers
    "Endpoint",
    "FailedPod",  # argument of a filter of failures, handle.services.failures
    "FeasibleNodes",  # argument of a NodeOrder
    "FilterTransformer",  # interface of Koordinator's transformers
    "FindOneNodePlugin",  # interface that Koordinator adds
    "FrozenAccount",  # the account of a view
    "GroupPlan",  # answer of a GroupPlanner
    "GroupPlanner",  # plans the nodes of a whole group
    "Holding",  # answer of an AccountKind
    "HypotheticalCluster",  # makes the changed nodes of a transformer
    "InformerFactoryProvider",  # interface of Koordinator's providers
    "NUMANodeUse",  # argument of handle.numa().admit()
    "NUMATopologyHint",
    "NUMATopologyHintProvider",
    "NUMATopologyPolicy",
    "NamedReservation",  # argument of the interfaces of reservations
    "NetworkTopology",  # in handle.services.network
    "NetworkTree",  # in handle.services.network
    "NextPodPlugin",  # interface that Koordinator adds
    "NoGroupPlan",  # answer of a GroupPlanner that found none
    "NodeOrder",  # argument of a GroupPlanner
    "NodePart",  # answer of a NodePartsProvider
    "NodePartsProvider",  # for the picture of a node on the status page
    "PendingAdvice",  # says in explanations what a pod waits for
    "PlannedReservePlugin",
    "PluginRequest",
    "PodGroupPlugin",  # says which pods are placed together
    "Pool",  # the sums of one pool
    "PostFilterTransformer",  # interface of Koordinator's transformers
    "PreFilterTransformer",  # interface of Koordinator's transformers
    "PreferNodesPlugin",
    "PrivateInformer",  # answer of an InformerFactoryProvider
    "ReservationCache",  # interface of Koordinator's reservations
    "ReservationFilterPlugin",  # interface of Koordinator's reservations
    "ReservationNominator",  # interface of Koordinator's reservations
    "ReservationPreAllocationRestorePlugin",  # interface of Koordinator's reservations
    "ReservationPreBindPlugin",  # interface of Koordinator's reservations
    "ReservationRestorePlugin",  # interface of Koordinator's reservations
    "ReservationRoom",  # argument of a ReservationFilterPlugin
    "ReservationScore",  # argument of ReservationScoreExtensions
    "ReservationScoreExtensions",  # interface of Koordinator's reservations
    "ReservationScorePlugin",  # interface of Koordinator's reservations
    "ResizePodPlugin",  # interface that Koordinator adds
    "SchedulerControl",  # answer of handle.scheduler()
    "ScoreTransformer",  # interface of Koordinator's transformers
    "Suggestion",  # argument of suggest
    "SuggestionType",  # field of a Suggestion
    "Taint",  # of what is placed like a node, as a reservation
    "Toleration",  # of such a Taint
    "TopologyNode",  # in handle.services.network
    "Transformed",  # answer of a transformer
    "suggest",  # offers a change to the user whose pod is pending
]
