"""Which gates have their feature in this build. Imports nothing: koordletctl asks too."""

# Plugins add theirs.
BUILT_GATES = (
    "AuditEvents",
    "AuditEventsHTTPHandler",
    "HugePageReport",
    "NodeMetricPromMetrics",
    "NodeNetworkCollector",
    "NodeTopologyReport",
    "PSICollector",
    "PodNetworkCollector",
)
