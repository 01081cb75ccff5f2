"""The agent's gate table."""

from koord.component.flags import Stage
from koordlet.features import GATES, feature_gates

ON = {
    "BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport", "GroupIdentity",
    "CPUSetAllocator", "BatchResource", "NodeNetworkCollector", "PodNetworkCollector",
}  # fmt: skip


def test_defaults():
    """39 gates of Koordinator and two of our own; the beta ones are on."""
    gates = feature_gates()
    assert len(GATES) == 41
    assert {name for name in GATES if gates.enabled(name)} == ON
    assert {name for name, spec in GATES.items() if spec.stage is Stage.BETA} == ON
    assert not any(spec.locked for spec in GATES.values())
