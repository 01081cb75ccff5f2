"""Profiles of a KubeSchedulerConfiguration v1, as files have them.

Source: Kubernetes, k8s.io/kube-scheduler/config/v1.
"""

from dataclasses import dataclass

from koord.component.config.typed import Int32

GROUP = "kubescheduler.config.k8s.io"
ALL = "*"
DEFAULT_SCHEDULER_NAME = "default-scheduler"


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedPlugin:
    """One plugin of a set."""

    name: str = ""  # of the plugin; "*" under disabled: all
    weight: Int32 = 0  # of its scores; 0: 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSet:
    """The difference to the default plugins of an extension point."""

    enabled: tuple[NamedPlugin, ...] = ()  # run after the defaults
    disabled: tuple[NamedPlugin, ...] = ()  # defaults that do not run


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """The plugins of a profile, by extension point."""

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()  # at every extension point that a plugin has


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """The arguments of one plugin."""

    name: str = ""  # of the plugin
    args: object = None  # see the plugin; not set: its defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeSchedulerProfile:
    """Plugins that schedule the pods of one scheduler name."""

    scheduler_name: str = ""  # default-scheduler when it is the only profile
    percentage_of_nodes_to_score: Int32 | None = None  # not set: as for all profiles
    plugins: Plugins = Plugins()  # differences to the default plugins
    plugin_config: tuple[PluginConfig, ...] = ()  # arguments, one entry for a plugin
