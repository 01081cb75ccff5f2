"""The feature gates: one of each plugin, and Koordinator's that switch parts of them."""

from collections.abc import Iterable

from koord.component.features import FeatureGates, FeatureSpec, Stage
from koord_manager import NAME

# Source: Koordinator, pkg/features (koord-manager).
GATES = {"EnableSyncGPUSharedResource": FeatureSpec()}


def feature_gates(plugins: Iterable[str]) -> FeatureGates:
    """Return the table, all at their defaults. plugins: names of gates that are on by default."""
    on = FeatureSpec(default=True, stage=Stage.BETA)
    return FeatureGates({**GATES, **dict.fromkeys(plugins, on)}, NAME)
