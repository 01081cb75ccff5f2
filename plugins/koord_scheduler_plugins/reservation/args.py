"""Arguments of the plugin Reservation, as Koordinator has them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from koord.api.reservation import IS_PRE_ALLOCATABLE, PRE_ALLOCATABLE_PRIORITY
from koord.plugin.args import FieldError, Int32, invalid


@dataclass(frozen=True, kw_only=True, slots=True)
class PreAllocationConfig:
    """How pods are found that a reservation may take over."""

    enable_cluster_mode: bool = False
    cluster_label_key: str = IS_PRE_ALLOCATABLE
    cluster_priority_annotation_key: str = PRE_ALLOCATABLE_PRIORITY
    prefer_no_pre_allocated_pods: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectorIndex:
    """Koordinator's index by labels; reservations are indexed by owner in any case."""

    enabled: bool = False
    key_prefixes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationArgs:
    """Arguments of the plugin, as Koordinator has them."""

    enable_preemption: bool = False  # of pods, for the sake of reservations
    min_candidate_nodes_percentage: Int32 = 10  # accepted; DefaultPreemption has its own
    min_candidate_nodes_absolute: Int32 = 100
    controller_workers: Int32 = 1  # accepted; writes are one after the other
    gc_duration_seconds: Int32 = 86400
    gc_interval_seconds: Int32 = 60
    resync_interval_seconds: Int32 = 60
    disable_garbage_collection: bool = False
    pre_allocation_config: PreAllocationConfig = field(default_factory=PreAllocationConfig)
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()
    reservation_selector_index: SelectorIndex = field(default_factory=SelectorIndex)

    def validate(self) -> Iterator[FieldError]:
        percentage = self.min_candidate_nodes_percentage
        if not 0 <= percentage <= 100:
            text = "must be in the range [0, 100]"
            yield invalid(("minCandidateNodesPercentage",), percentage, text)
        for key, number in (
            ("minCandidateNodesAbsolute", self.min_candidate_nodes_absolute),
            ("gcDurationSeconds", self.gc_duration_seconds),
            ("gcIntervalSeconds", self.gc_interval_seconds),
            ("resyncIntervalSeconds", self.resync_interval_seconds),
        ):
            if number < 0:
                yield invalid((key,), number, "must be non-negative")
        for name in self.ignored_resources:
            if "/" not in name or name.partition("/")[0].endswith("kubernetes.io"):
                text = (
                    "must be an extended resource name (e.g. example.com/gpu); native resources "
                    "cannot be ignored"
                )
                yield invalid(("ignoredResources",), name, text)
        for name in self.ignored_resource_groups:
            if "/" in name:
                text = "resource group name can't contain '/'"
                yield invalid(("ignoredResourceGroups",), name, text)
            elif not name or name.endswith("kubernetes.io"):
                text = "must be a resource group that extended resources can have"
                yield invalid(("ignoredResourceGroups",), name, text)
