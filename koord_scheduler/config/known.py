"""The plugins that a build can run, and those that it should be able to run and cannot."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.component.plugins.args import ArgsType
from koord_scheduler.config.defaults import DEFAULT_WEIGHTS
from koord_scheduler.config.points import Point

DEFAULT_PRE_BIND = "DefaultPreBind"
MISSING_PLUGINS = "MissingPlugins"  # refuses pods that need one that is not there
KOORDINATOR_PLUGINS = (
    "Coscheduling",
    DEFAULT_PRE_BIND,
    "DeviceShare",
    "ElasticQuota",
    "LoadAwareScheduling",
    "NodeNUMAResource",
    "NodeResourcesFitPlus",
    "Reservation",
    "ScarceResourceAvoidance",
    "SchedulingHint",
)
"""The plugins of Koordinator's scheduler."""


@dataclass(frozen=True, slots=True)
class KnownPlugin:
    """What the configuration knows of a plugin."""

    points: frozenset[Point]
    args: ArgsType | None = None  # None: any object, which the plugin reads itself
    is_opaque: bool = False  # which of the points it has is not known before it is made


KnownPlugins = Mapping[str, KnownPlugin]
"""The plugins that profiles may name."""


def is_not_built(name: str, known: KnownPlugins) -> bool:
    """Whether a plugin is Kubernetes' or Koordinator's, and this build does not have it."""
    return name not in known and (name in DEFAULT_WEIGHTS or name in KOORDINATOR_PLUGINS)
