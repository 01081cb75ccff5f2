"""Metric kinds of a plugin's own: in the metric cache, and as gauges on /metrics."""

from dataclasses import dataclass

from koordlet.metriccache.kinds import AnyKind, Cadence, Keep, Kind

__all__ = ["AnyKind", "Cadence", "Keep", "Kind", "Published"]


@dataclass(frozen=True, slots=True)
class Published:
    """A kind of a plugin's own. Its name begins with the plugin's, in lower_snake_case.

    most: series that it may have; values of further ones are left out until others are idle for
    the retention, which is that of the kinds of pods (5 minutes by default; keep=Keep.POD).
    """

    kind: AnyKind
    most: int = 100
