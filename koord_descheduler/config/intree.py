"""The plugins of Koordinator's registry: where each runs, and its arguments.

Source: Koordinator, cmd/koord-descheduler and pkg/descheduler/framework/plugins.
"""

from typing import Any

from koord.component.plugins.args import ArgsType
from koord_descheduler.config.pluginargs.balance import (
    CustomPriorityArgs,
    FragmentationAwareArgs,
    ScaleDownBinPackArgs,
)
from koord_descheduler.config.pluginargs.kubernetes import (
    DefaultEvictorArgs,
    HighNodeUtilizationArgs,
    LowNodeUtilizationArgs,
    PodLifeTimeArgs,
    RemoveDuplicatesArgs,
    RemoveFailedPodsArgs,
    RemovePodsHavingTooManyRestartsArgs,
    RemovePodsViolatingInterPodAntiAffinityArgs,
    RemovePodsViolatingNodeAffinityArgs,
    RemovePodsViolatingNodeTaintsArgs,
    RemovePodsViolatingTopologySpreadConstraintArgs,
)
from koord_descheduler.config.pluginargs.lownodeload import LowNodeLoadArgs
from koord_descheduler.config.pluginargs.migration import MigrationControllerArgs
from koord_descheduler.config.points import KnownPlugin, KnownPlugins, Point
from koord_descheduler.config.v1alpha2 import GROUP_VERSION


def _own(cls: type[Any], *points: Point) -> KnownPlugin:
    """A plugin whose arguments have a kind of descheduler/v1alpha2."""
    return KnownPlugin(
        frozenset(points), ArgsType(cls, kind=cls.__name__, group_version=GROUP_VERSION)
    )


def _adapted(cls: type[Any], *points: Point) -> KnownPlugin:
    """A plugin of the Kubernetes descheduler, whose arguments are read as there."""
    return KnownPlugin(frozenset(points), ArgsType(cls, strict=False))


IN_TREE: KnownPlugins = {
    "LowNodeLoad": _own(LowNodeLoadArgs, Point.BALANCE),
    "CustomPriority": _own(CustomPriorityArgs, Point.BALANCE),
    "FragmentationAware": _own(FragmentationAwareArgs, Point.BALANCE),
    "ScaleDownBinPack": _own(ScaleDownBinPackArgs, Point.BALANCE),
    "MigrationController": _own(MigrationControllerArgs, Point.EVICT, Point.FILTER),
    "DefaultEvictor": _adapted(DefaultEvictorArgs, Point.EVICT, Point.FILTER),
    "HighNodeUtilization": _adapted(HighNodeUtilizationArgs, Point.BALANCE),
    "LowNodeUtilization": _adapted(LowNodeUtilizationArgs, Point.BALANCE),
    "RemoveDuplicates": _adapted(RemoveDuplicatesArgs, Point.BALANCE),
    "RemovePodsViolatingTopologySpreadConstraint": _adapted(
        RemovePodsViolatingTopologySpreadConstraintArgs, Point.BALANCE
    ),
    "PodLifeTime": _adapted(PodLifeTimeArgs, Point.DESCHEDULE),
    "RemoveFailedPods": _adapted(RemoveFailedPodsArgs, Point.DESCHEDULE),
    "RemovePodsHavingTooManyRestarts": _adapted(
        RemovePodsHavingTooManyRestartsArgs, Point.DESCHEDULE
    ),
    "RemovePodsViolatingInterPodAntiAffinity": _adapted(
        RemovePodsViolatingInterPodAntiAffinityArgs, Point.DESCHEDULE
    ),
    "RemovePodsViolatingNodeAffinity": _adapted(
        RemovePodsViolatingNodeAffinityArgs, Point.DESCHEDULE
    ),
    "RemovePodsViolatingNodeTaints": _adapted(RemovePodsViolatingNodeTaintsArgs, Point.DESCHEDULE),
}
