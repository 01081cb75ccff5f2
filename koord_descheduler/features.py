"""The descheduler's feature gates: names, defaults and stages."""

from collections.abc import Mapping

from koord.component.features import FeatureGates, FeatureSpec
from koord_descheduler import NAME

# Source: Koordinator, pkg/features (koord-descheduler).
GATES: Mapping[str, FeatureSpec] = {"DisablePVCReservation": FeatureSpec()}


def feature_gates() -> FeatureGates:
    """Return the table with all gates at their defaults."""
    return FeatureGates(GATES, NAME)
