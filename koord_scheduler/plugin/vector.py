"""Forms of plugins over all nodes at once: masks and columns, and the rules that they share.

Rules with a pod and a View return a Mask or a column, one entry per node of the view.
"""

from koord.cluster.columns import CodedColumn, Mask
from koord.cluster.placement import differing_pods
from koord.cluster.predicates.nodes import (
    FreeResources,
    ResourceRequests,
    has_free_ports,
    has_name,
    insufficient_resources,
    insufficient_resources_on,
    is_schedulable,
    matches_node_affinity,
    matches_terms,
    preferences_met,
    resource_requests_of,
    tolerates_taints,
    untolerated_preferences,
)
from koord.cluster.predicates.pod_affinity import (
    ExistingAntiAffinity,
    RequiredAffinity,
    RequiredAntiAffinity,
    TopologyCounts,
    WeightedTerms,
)
from koord.cluster.predicates.spread import (
    TopologySpread,
    counted_nodes,
    labelled_by,
    pods_counted,
    selector_of,
    spreads,
)
from koord_scheduler.framework.interfaces import (
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.status import Numbers, Scores, Verdicts, default_normalize
from koord_scheduler.framework.types import ChangedRows
from koord_scheduler.rules.resourcescores import (
    Balanced,
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio,
    ResourceSpec,
    Scorer,
    is_extended,
    pod_amount,
    resource_counts,
    use_of_all,
    use_of_node,
    uses_of_node,
    weighted,
)

__all__ = [
    "Balanced",
    "ChangedRows",
    "CodedColumn",
    "ExistingAntiAffinity",
    "FreeResources",
    "LeastAllocated",
    "Mask",
    "MostAllocated",
    "Numbers",
    "RequestedToCapacityRatio",
    "RequiredAffinity",
    "RequiredAntiAffinity",
    "ResourceRequests",
    "ResourceSpec",
    "Scorer",
    "Scores",
    "TopologyCounts",
    "TopologySpread",
    "VectorFilterPlugin",
    "VectorNormalizeScorePlugin",
    "VectorScorePlugin",
    "Verdicts",
    "WeightedTerms",
    "counted_nodes",
    "default_normalize",
    "differing_pods",
    "has_free_ports",
    "has_name",
    "insufficient_resources",
    "insufficient_resources_on",
    "is_extended",
    "is_schedulable",
    "labelled_by",
    "matches_node_affinity",
    "matches_terms",
    "pod_amount",
    "pods_counted",
    "preferences_met",
    "resource_counts",
    "resource_requests_of",
    "selector_of",
    "spreads",
    "tolerates_taints",
    "untolerated_preferences",
    "use_of_all",
    "use_of_node",
    "uses_of_node",
    "weighted",
]
