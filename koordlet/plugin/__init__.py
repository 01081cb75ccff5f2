"""The public plugin API: the names that most plugins use.

Plugins that need more import its modules kernel (kernel values, claims, storage), metrics, network
and pods; koord.plugin, which has what plugins of all daemons need; and koord.api. testing is the
test kit. docs/writing-plugins.md is a tutorial.
"""

from koord.component.flags import FeatureSpec, Flag, FlagSet
from koordlet.executor.claims.claim import Claim, ClaimScope, Target
from koordlet.executor.evictions.eviction import Eviction
from koordlet.host import resources
from koordlet.host.resource import Level
from koordlet.metriccache import keys, kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.plugin.base import WAITS_FOR_EVENTS, ExtensionPlugin, Limits
from koordlet.plugin.extensions import Extension
from koordlet.plugin.interfaces import Client, States
from koordlet.plugin.publishing import Published
from koordlet.plugin.registry import PluginRegistry
from koordlet.rules.node_topology import CpuPool, NodeTopology, shared_cpus
from koordlet.statesinformer.informer import CallbackTarget, StateType
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

__all__ = [
    "WAITS_FOR_EVENTS",
    "CallbackTarget",
    "Claim",
    "ClaimScope",
    "Client",
    "ContainerMeta",
    "CpuPool",
    "Eviction",
    "Extension",
    "ExtensionPlugin",
    "FeatureSpec",
    "Flag",
    "FlagSet",
    "Level",
    "Limits",  # of a plugin whose rounds take more than usual
    "MetricCache",
    "NodeTopology",
    "PluginRegistry",
    "PodMeta",
    "Published",
    "StateType",
    "States",
    "Target",
    "keys",
    "kinds",
    "resources",
    "shared_cpus",
]
