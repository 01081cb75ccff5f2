"""The public plugin API: everything of koord-manager that a plugin may use.

Plugins import this module, koord.plugin and koord.api, nothing else of the daemon. docs/manager.md
has an example.
"""

from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    ReportedPods,
    ReportedPodUsage,
    ReportedUsage,
)
from koord.cluster.keptfields import KeptFields, reads
from koord.cluster.kinds import UsageReport
from koord_manager.framework.facts import (
    MAX_ZONES,
    NOTHING,
    Calculation,
    CpuModel,
    NodeDevice,
    NodeDevices,
    NodeFacts,
    NodeTopology,
    Offered,
    Term,
    Zone,
)
from koord_manager.framework.interfaces import (
    ControllerPlugin,
    Handle,
    NodeResourcePlugin,
    Plugin,
    PodMutator,
    Services,
)

__all__ = [
    "MAX_ZONES",
    "NOTHING",  # the result of a plugin that says nothing of a node
    "Calculation",
    "ClusterNode",  # field of NodeFacts
    "ClusterPod",
    "ControllerPlugin",
    "CpuModel",  # field of NodeTopology
    "Handle",
    "KeptFields",  # declarations that several plugins share
    "NodeDevice",  # item of NodeDevices
    "NodeDevices",  # field of NodeFacts
    "NodeFacts",
    "NodeResourcePlugin",
    "NodeTopology",
    "Offered",
    "Plugin",  # base of all interfaces
    "PodMutator",
    "ReportedPodUsage",  # item of a UsageReport
    "ReportedPods",
    "ReportedUsage",
    "Services",
    "Term",
    "UsageReport",  # field of NodeFacts
    "Zone",  # item of NodeTopology
    "reads",
]
