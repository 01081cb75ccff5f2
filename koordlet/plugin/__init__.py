"""The public plugin API: all that a QoS plugin may use, besides koord.api.

See docs/writing-plugins.md for a tutorial, and koordlet.plugin.testing for the test kit.
"""

from koord.api.eviction import EvictionOutcome
from koord.api.fields import Fields
from koord.component.features import FeatureSpec, Stage
from koord.component.flags import Flag, FlagSet
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordletError, OptionError, Unavailable
from koord.util.stop import Stop
from koordlet.executor.audit.wording import Wording
from koordlet.executor.claims.claim import Claim, ClaimOutcome, ClaimScope, ClaimState, Part
from koordlet.executor.claims.combine import scaled_quota
from koordlet.executor.claims.target import Level, Target
from koordlet.executor.evictions.eviction import Eviction
from koordlet.executor.kernel.view import Kernel, Reading
from koordlet.host import resources
from koordlet.host.cgroups.cpuvalues import milli_to_quota, milli_to_shares
from koordlet.host.cgroups.layout import Layout
from koordlet.host.resource import Resource
from koordlet.metriccache import keys, kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import AnyKind, Cadence, Keep, Kind
from koordlet.plugin.base import WAITS_FOR_EVENTS, ExtensionPlugin, Limits, Log
from koordlet.plugin.client import Client, UnavailableClient
from koordlet.plugin.errors import PluginError
from koordlet.plugin.extensions import Extension
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.noderatio import NodeRatio
from koordlet.plugin.perpod import PerPod
from koordlet.plugin.podsettings import PodSettings
from koordlet.plugin.publishing import Published
from koordlet.plugin.reconcile import (
    PodRoundsPlugin,
    ReconcilingPlugin,
    containers_of,
    host_applications,
    pods_of,
)
from koordlet.plugin.registry import PluginRegistry
from koordlet.plugin.rejections import Rejections
from koordlet.plugin.sharedflags import strategy_interval
from koordlet.plugin.states import States
from koordlet.plugin.upstreamgauge import UpstreamGauge
from koordlet.statesinformer.callbacks import CallbackTarget, StateType, UpdateCbFn
from koordlet.statesinformer.model import ContainerMeta, PodMeta

__all__ = [
    "WAITS_FOR_EVENTS",
    "AnyKind",
    "Cadence",
    "CallbackTarget",
    "Claim",
    "ClaimOutcome",
    "ClaimScope",
    "ClaimState",
    "Client",
    "Clock",
    "ContainerMeta",
    "Eviction",
    "EvictionOutcome",
    "Extension",
    "ExtensionPlugin",
    "FeatureSpec",
    "Fields",
    "Flag",
    "FlagSet",
    "InvalidObject",
    "Keep",
    "Kernel",
    "Kind",
    "KoordletError",
    "Layout",
    "Level",
    "Limits",
    "Log",
    "MetricCache",
    "NodeRatio",
    "OptionError",
    "Part",
    "PerPod",
    "PluginError",
    "PluginMetrics",
    "PluginRegistry",
    "PodMeta",
    "PodRoundsPlugin",
    "PodSettings",
    "Published",
    "Reading",
    "ReconcilingPlugin",
    "Rejections",
    "Resource",
    "Stage",
    "StateType",
    "States",
    "Stop",
    "Target",
    "Unavailable",
    "UnavailableClient",
    "UnknownSeries",
    "UpdateCbFn",
    "UpstreamGauge",
    "Wording",
    "containers_of",
    "host_applications",
    "keys",
    "kinds",
    "milli_to_quota",
    "milli_to_shares",
    "pods_of",
    "resources",
    "scaled_quota",
    "strategy_interval",
]
