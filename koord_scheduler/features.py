"""The scheduler's feature gates: names, defaults and stages."""

from collections.abc import Mapping

from koord.component.features import FeatureGates, FeatureSpec, Stage
from koord_scheduler import NAME

_ON = FeatureSpec(default=True, stage=Stage.BETA)
_OFF = FeatureSpec()
_GA = FeatureSpec(default=True, stage=Stage.GA)

# Source: Koordinator, pkg/features (koord-scheduler).
_KOORDINATOR: Mapping[str, FeatureSpec] = {
    "CSIStorageCapacity": _GA,
    "CleanExpiredReservationAllocated": _OFF,
    "CompatibleCSIStorageCapacity": _OFF,
    "CompatiblePodDisruptionBudget": _OFF,
    "CrossSchedulerNomination": _OFF,
    "DevicePluginAdaption": _OFF,
    "DisableCSIStorageCapacityInformer": _OFF,
    "DisableDefaultQuota": _OFF,
    "DisablePodDisruptionBudgetInformer": _OFF,
    "DynamicSchedulerCheck": FeatureSpec(default=True),
    "ElasticQuotaEnableUpdateResourceKey": _OFF,
    "ElasticQuotaGuaranteeUsage": _OFF,
    "ElasticQuotaIgnorePodOverhead": _OFF,
    "ElasticQuotaIgnoreTerminatingPod": _OFF,
    "ElasticQuotaImmediateIgnoreTerminatingPod": _OFF,
    "EnableBatchScheduleNodeSnapshot": FeatureSpec(default=True),
    "EnableInlineBatchSchedule": _OFF,
    "GangPendingPodsConditionPatch": FeatureSpec(default=True),
    "GenericEphemeralVolume": _GA,
    "LazyReservationRestore": _OFF,
    "MultiQuotaTree": _OFF,
    "OmitNodeLabelsForReservation": _OFF,
    "PodDisruptionBudget": _GA,
    "ResizePod": _OFF,
    "SkipFilterWithNominatedPods": _OFF,
    "SkipReservationFitsNode": _OFF,
    "SupportParentQuotaSubmitPod": _OFF,
    "SyncBarrier": _OFF,
}
# Source: Kubernetes, pkg/features (kube-scheduler's part).
_KUBERNETES: Mapping[str, FeatureSpec] = {
    "DynamicResourceAllocation": _GA,
    "GangScheduling": _OFF,
    "GenericWorkload": _OFF,
    "InPlacePodVerticalScaling": _GA,
    "MatchLabelKeysInPodAffinity": _GA,
    "MatchLabelKeysInPodTopologySpread": _ON,
    "NodeInclusionPolicyInPodTopologySpread": _GA,
    "NominatedNodeNameForExpectation": _ON,
    "OpportunisticBatching": _ON,
    "PodLevelResources": _ON,
    "PodSchedulingReadiness": _GA,
    "SchedulerAsyncAPICalls": _ON,
    "SchedulerAsyncPreemption": _ON,
    "SchedulerPopFromBackoffQ": _ON,
    "SchedulerQueueingHints": _GA,
    "SidecarContainers": _GA,
    "StorageCapacityScoring": _OFF,
}
_BUILT = (  # of the framework and of plugins that ship
    "CrossSchedulerNomination",
    "DevicePluginAdaption",
    "DisableDefaultQuota",
    "DynamicSchedulerCheck",
    "ElasticQuotaEnableUpdateResourceKey",
    "ElasticQuotaGuaranteeUsage",
    "ElasticQuotaImmediateIgnoreTerminatingPod",
    "MultiQuotaTree",
    "OmitNodeLabelsForReservation",
    "ResizePod",
    "SkipFilterWithNominatedPods",
    "SkipReservationFitsNode",
    "SupportParentQuotaSubmitPod",
)
GATES: Mapping[str, FeatureSpec] = {**_KOORDINATOR, **_KUBERNETES}


def feature_gates() -> FeatureGates:
    """Return the table with all gates at their defaults; those that do something are built."""
    gates = FeatureGates(GATES, NAME)
    gates.mark_built(name for name, spec in _KUBERNETES.items() if spec.default)
    gates.mark_built(_BUILT)
    return gates
