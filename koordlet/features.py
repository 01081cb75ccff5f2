"""The agent's feature gates: names, defaults and stages."""

from collections.abc import Mapping

from koord.component.flags import FeatureGates, FeatureSpec, Stage
from koordlet import NAME

_ON, _OFF = FeatureSpec(default=True, stage=Stage.BETA), FeatureSpec()

# Source: Koordinator pkg/features (koordlet) and pkg/koordlet/runtimehooks; the last two are ours.
GATES: Mapping[str, FeatureSpec] = {
    "AuditEvents": _OFF,
    "AuditEventsHTTPHandler": _OFF,
    "BECPUSuppress": _ON,
    "BECPUManager": _OFF,
    "BECPUEvict": _OFF,
    "CPUEvict": _OFF,
    "CPUAllocatableEvict": _OFF,
    "BEMemoryEvict": _OFF,
    "MemoryEvict": _OFF,
    "MemoryAllocatableEvict": _OFF,
    "CPUBurst": _ON,
    "SystemConfig": _OFF,
    "RdtResctrl": _ON,
    "ResctrlCollector": _OFF,
    "CgroupReconcile": _OFF,
    "NodeTopologyReport": _ON,
    "Accelerators": _OFF,
    "RDMADevices": _OFF,
    "CPICollector": _OFF,
    "Libpfm4": _OFF,
    "PSICollector": _OFF,
    "BlkIOReconcile": _OFF,
    "ColdPageCollector": _OFF,
    "HugePageReport": _OFF,
    "PodResourcesProxy": _OFF,
    "HamiCoreVGPUMonitor": _OFF,
    "PerCPUMetric": _OFF,
    "NodeMetricPromMetrics": _OFF,
    "GroupIdentity": _ON,
    "CPUSetAllocator": _ON,
    "BatchResource": _ON,
    "GPUEnvInject": _OFF,
    "RDMADeviceInject": _OFF,
    "CPUNormalization": _OFF,
    "CoreSched": _OFF,
    "TerwayQoS": _OFF,
    "TCNetworkQoS": _OFF,
    "Resctrl": _OFF,
    "OOMScoreAdj": _OFF,
    "NodeNetworkCollector": _ON,
    "PodNetworkCollector": _ON,
}


# Those that the agent itself serves; plugins add theirs.
BUILT_GATES = (
    "Accelerators",
    "AuditEvents",
    "AuditEventsHTTPHandler",
    "CPICollector",
    "GPUEnvInject",
    "HamiCoreVGPUMonitor",
    "HugePageReport",
    "Libpfm4",
    "NodeMetricPromMetrics",
    "NodeNetworkCollector",
    "NodeTopologyReport",
    "PSICollector",
    "PodNetworkCollector",
    "PodResourcesProxy",
    "RDMADeviceInject",
    "RDMADevices",
    "ResctrlCollector",
)

# Those by which the agent itself, and no plugin, changes something; in dry-run as plugins can be.
INJECTORS = GPU_ENV_INJECT, RDMA_DEVICE_INJECT = "GPUEnvInject", "RDMADeviceInject"
HAMI_MONITOR = "HamiCoreVGPUMonitor"


def feature_gates() -> FeatureGates:
    """Return the agent's gates, each at its default, with those marked that the agent serves."""
    gates = FeatureGates(GATES, NAME)
    gates.mark_built(BUILT_GATES)
    return gates
