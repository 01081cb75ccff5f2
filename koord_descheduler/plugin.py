"""The public plugin API: everything that a plugin of koord-descheduler may use.

Plugins import this module and koord.api, nothing else of the daemon.
"""

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.plugins.errors import PluginError
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord_descheduler.framework.evictor import EvictorProxy
from koord_descheduler.framework.filters import FilterFunc, combine, pod_filter
from koord_descheduler.framework.handle import Handle, Informers, Services
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictOptions,
    Evictor,
    EvictPlugin,
    FilterPlugin,
    Plugin,
)
from koord_descheduler.framework.registry import PluginFactory, PluginRegistry
from koord_descheduler.framework.status import Status
from koord_descheduler.framework.turn import because

__all__ = [
    "BalancePlugin",
    "ClusterNode",
    "ClusterPod",
    "DeschedulePlugin",
    "EvictOptions",
    "EvictPlugin",
    "Evictor",
    "EvictorProxy",
    "FilterFunc",
    "FilterPlugin",
    "Handle",
    "Informers",
    "InvalidObject",
    "KoordError",
    "LabelSelector",
    "OptionError",
    "Plugin",
    "PluginError",
    "PluginFactory",
    "PluginRegistry",
    "Services",
    "Status",
    "because",
    "combine",
    "pod_filter",
]
