"""docs/descheduler-configuration.md."""

from collections.abc import Iterator

from koord.controlplane.sections import ClientConnection
from koord_descheduler.config import (
    DEFAULT_PLUGINS,
    DeschedulerConfiguration,
    DeschedulerProfile,
    EvictionLedger,
    LeaderElection,
    PluginConfig,
    Plugins,
    PluginSet,
)
from koord_descheduler.framework.profile import known_plugins
from koord_descheduler.planning import installed_plugins
from koord_descheduler_plugins.migration.args import EvictionGate
from reference.fields import sections, tables
from reference.markdown import code, codes, page, table

_SHIPPED = known_plugins(installed_plugins("koord-descheduler"))
_INTRO = """
The file of `--config`: `apiVersion: descheduler/v1alpha2`, `kind: DeschedulerConfiguration`, YAML
or JSON, at most 64 KiB, without aliases. Koordinator's is taken as it is.

Durations are Go's, as texts: `300ms`, `10s`, `1h30m`. Percentages are numbers, not texts. null is
as good as an absent field. The case of keys matters. An unknown field, one that is there twice,
or a bad value refuses the file; all that is wrong is reported, with line, path, value and what
was wanted:

```
config.yaml:7: profiles[0].pluginConfig[0].args.nodeFit: Invalid value: 1: wanted true or false
```

Accepted, with a warning, is what is hardly meant: arguments of a plugin that is not enabled, or
no interval.
"""
_PLUGINS = """
A profile changes the default plugins of an extension point: `disabled` takes defaults out (`*`:
all), `enabled` adds plugins, in their order. What is in both is enabled. There is one evict
plugin; to use another, disable the default.
"""
_ARGS = """
`pluginConfig` has one entry for a plugin, `name` and `args`. A plugin without entry has its
defaults. `apiVersion` and `kind` (`<plugin>Args`) may be given.
"""
_ADAPTED = """
Adapted from the Kubernetes descheduler. As there, the case of keys does not matter, and an
unknown field is ignored, with a warning.
"""
_RELOAD = """
The file is read again when it has changed. At the next cycle take effect: profiles, their plugins
and arguments (a plugin gets a new instance when its arguments change, or its profile's
`nodeSelector` or dry-run; the others keep their state), `deschedulingInterval`, `dryRun`,
`nodeSelector`, `evictionLedger` and the limits. A restart need: `leaderElection`,
`clientConnection`, the addresses, profiling. A file that cannot be used changes nothing.
"""


def descheduler_page() -> str:
    """The page."""
    profile = (DeschedulerProfile, PluginConfig, Plugins, PluginSet)
    return page(
        "The descheduler's configuration",
        _INTRO,
        "## Process",
        *sections(DeschedulerConfiguration, LeaderElection, ClientConnection, EvictionLedger),
        "## Profiles",
        *sections(*profile),
        _PLUGINS,
        _default_plugins(),
        "## Arguments of plugins",
        _ARGS,
        *_plugins(strict=True),
        f"`skipEvictionGates` are {codes(EvictionGate)}.",
        "## Arguments of adapted plugins",
        _ADAPTED,
        *_plugins(strict=False),
        "## Reading it again",
        _RELOAD,
    )


def _default_plugins() -> str:
    rows = (
        [code(f"plugins.{point}"), codes(names) or "none", codes(_at(point))]
        for point, names in DEFAULT_PLUGINS.items()
    )
    return table(["Extension point", "By default", "Plugins"], rows)


def _at(point: str) -> list[str]:
    return [name for name, plugin in _SHIPPED.items() if point in plugin.points]


def _plugins(*, strict: bool) -> Iterator[str]:
    for name, plugin in _SHIPPED.items():
        if plugin.args is not None and plugin.args.strict is strict:
            yield f"### {name}"
            yield from tables(plugin.args.cls)
