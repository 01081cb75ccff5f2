"""Retention of samples in the metric cache: as long as the reports need them."""

from koord.api.nodemetric import DEFAULT_SPEC, NodeMetricSpec
from koordlet.metriccache.kinds import Keep


def retentions(spec: NodeMetricSpec = DEFAULT_SPEC) -> dict[Keep, float]:
    """Return the seconds that samples are kept for reports of this spec."""
    return {
        Keep.NODE: max(spec.aggregate_duration, *spec.durations),
        Keep.POD: spec.aggregate_duration,
    }
