"""The public plugin API: everything that a plugin of koord-descheduler may use.

Plugins import this module and koord.api, nothing else of the daemon.
"""

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.config.faults import (
    Fault,
    FieldPath,
    Key,
    duplicate,
    invalid,
    invalid_duration,
    required,
    unsupported,
    warning,
)
from koord.component.config.typed import Int32, Seconds, UInt, UInt32
from koord.component.plugins.errors import PluginError
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord_descheduler.config.pluginargs.argstype import takes_args
from koord_descheduler.config.pluginargs.parts import (
    Namespaces,
    Percents,
    PodSelector,
    PriorityThreshold,
    check_label_selector,
    check_namespaces,
    check_percents,
    check_pod_selectors,
    check_selector_text,
    check_unique,
)
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
    "Fault",
    "FieldPath",
    "FilterFunc",
    "FilterPlugin",
    "Handle",
    "Informers",
    "Int32",
    "InvalidObject",
    "Key",
    "KoordError",
    "LabelSelector",
    "Namespaces",
    "OptionError",
    "Percents",
    "Plugin",
    "PluginError",
    "PluginFactory",
    "PluginRegistry",
    "PodSelector",
    "PriorityThreshold",
    "Seconds",
    "Services",
    "Status",
    "UInt",
    "UInt32",
    "because",
    "check_label_selector",
    "check_namespaces",
    "check_percents",
    "check_pod_selectors",
    "check_selector_text",
    "check_unique",
    "combine",
    "duplicate",
    "invalid",
    "invalid_duration",
    "pod_filter",
    "required",
    "takes_args",
    "unsupported",
    "warning",
]
