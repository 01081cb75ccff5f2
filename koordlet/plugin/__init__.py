"""The public plugin API: with its modules pods and rules all a QoS plugin uses, but for koord.api.

See docs/writing-plugins.md for a tutorial, and koordlet.plugin.testing for the test kit.
"""

from koord.api.eviction import EvictionOutcome
from koord.api.fields import Fields
from koord.component.features import FeatureSpec, Stage
from koord.component.flags import Flag, FlagSet
from koord.util.errors import InvalidObject, KoordError, OptionError, Unavailable
from koord.util.stop import Stop
from koordlet.executor.audit.wording import Wording
from koordlet.executor.claims.claim import Claim, ClaimOutcome, ClaimScope, ClaimState, Part
from koordlet.executor.claims.target import Level, Target
from koordlet.executor.evictions.eviction import Eviction
from koordlet.executor.kernel.view import Kernel, Reading
from koordlet.host import resources
from koordlet.host.cgroups.layout import Layout
from koordlet.host.kernelfile import KernelFile
from koordlet.host.resource import Resource
from koordlet.host.valueforms import NumberOrMax, OneWord, WholeNumber
from koordlet.metriccache import keys, kinds
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import AnyKind, Cadence, Keep, Kind
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.client import Client
from koordlet.plugin.extensions import Extension
from koordlet.plugin.limits import WAITS_FOR_EVENTS, Limits
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.publishing import Published
from koordlet.plugin.registry import PluginRegistry
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
    "KernelFile",
    "Kind",
    "KoordError",
    "Layout",
    "Level",
    "Limits",
    "MetricCache",
    "NumberOrMax",
    "OneWord",
    "OptionError",
    "Part",
    "PluginMetrics",
    "PluginRegistry",
    "PodMeta",
    "Published",
    "Reading",
    "Resource",
    "Stage",
    "StateType",
    "States",
    "Stop",
    "Target",
    "Unavailable",
    "UnknownSeries",
    "UpdateCbFn",
    "UpstreamGauge",
    "WholeNumber",
    "Wording",
    "keys",
    "kinds",
    "resources",
]
