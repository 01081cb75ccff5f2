"""docs/scheduler-configuration.md."""

from koord.controlplane.sections import ClientConnection
from koord_scheduler.config.profiles import (
    DEFAULT_POINTS,
    DEFAULT_WEIGHTS,
    KOORDINATOR_PLUGINS,
    Point,
)
from koord_scheduler.config.v1 import (
    Extender,
    ExtenderManagedResource,
    ExtenderTLSConfig,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    LeaderElection,
    PluginConfig,
    Plugins,
    PluginSet,
)
from reference.fields import sections
from reference.markdown import code, codes, page, table

_INTRO = """
The file of `--config`: `apiVersion: kubescheduler.config.k8s.io/v1`, `kind:
KubeSchedulerConfiguration`, YAML or JSON, at most 64 KiB, without aliases. kube-scheduler's and
Koordinator's are taken as they are. The file is read once, at the start.

Durations are Go's, as texts: `300ms`, `10s`, `1h30m`. null is as good as an absent field. The case
of keys matters. An unknown field, one that is there twice, or a bad value refuses the file; all
that is wrong is reported, with line, path, value and what was wanted:

```
config.yaml:7: profiles[0].plugins.filter.enabled[0].name: Invalid value: "NodeNam": plugin
"NodeNam" does not exist; did you mean "NodeName"?
```

An older version (`v1beta1` to `v1beta3`) is refused, with what to change in the file.

Accepted, with a warning, is what is hardly meant: arguments of a plugin that is not enabled, an
extender without a verb; and a plugin of Kubernetes or Koordinator that is not built: the profile
runs without it, and `/healthz` names it.

A pod that asks for what no plugin of its profile claims stays pending, and its event
FailedScheduling says what it asks for and which plugin to enable or install: gangs (Coscheduling),
quotas (ElasticQuota), required reservations (Reservation), required CPU binding and NUMA alignment
(NodeNUMAResource), Koordinator's device resources (DeviceShare), or other plugins that claim the
same. That is the plugin `MissingPlugins`, which each profile has unless it disables it by this
name.
"""
_PLUGINS = """
A profile changes the default plugins. `multiPoint` is for all extension points that a plugin has,
the others for one: `disabled` takes plugins out (`*`: all), `enabled` adds plugins, after the
defaults. A default that is listed again changes its weight in place. What a point says goes before
what multiPoint says. A plugin that is enabled at one point is not at its others.

All profiles have the same queueSort plugin, and each has exactly one. As in Koordinator,
`DefaultPreBind` is added to `preBind` of each profile that has a `plugins` section, unless it is
disabled there.
"""
_ARGS = """
`pluginConfig` has one entry for a plugin, `name` and `args`. A plugin without entry has its
defaults. `apiVersion` and `kind` (`<plugin>Args`) may be given, and are checked. The arguments of
plugins that declare them are checked before anything starts.
"""
_EXTENDERS = """
An extender is asked by all profiles, in the order of the file, those that are `ignorable` after the
others. What it rejects waits for any event. One that fails fails the pod's attempt unless it is
`ignorable`; scores that do not come count as none. Without `nodeCacheCapable` all nodes travel with
each question, which costs tens of milliseconds for a thousand nodes. Extenders that filter, score
or preempt need the right to get pods, which the shipped role does not have.
"""


def scheduler_page() -> str:
    """The page."""
    return page(
        "The scheduler's configuration",
        _INTRO,
        "## Process",
        *sections(KubeSchedulerConfiguration, LeaderElection, ClientConnection),
        "## Profiles",
        *sections(KubeSchedulerProfile, PluginConfig, Plugins, PluginSet),
        _PLUGINS,
        "### Default plugins",
        _defaults(),
        f"Koordinator's plugins are {codes(KOORDINATOR_PLUGINS)}; a profile enables them by name.",
        "### Arguments of plugins",
        _ARGS,
        "## Extenders",
        _EXTENDERS,
        *sections(Extender, ExtenderTLSConfig, ExtenderManagedResource),
    )


def _defaults() -> str:
    rows = (
        [
            code(name),
            str(weight or ""),
            codes(point for point in Point if point in DEFAULT_POINTS[name]),
        ]
        for name, weight in DEFAULT_WEIGHTS.items()
    )
    return table(["Plugin", "Weight", "Extension points"], rows)
