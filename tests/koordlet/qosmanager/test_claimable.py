"""The doctor looks at what plugins from elsewhere may claim; its own table has the rest."""

from koordlet.plugin import ClaimScope, ExtensionPlugin, FeatureSpec, Level, PluginRegistry
from koordlet.plugin import resources as known
from koordlet.qosmanager.config import claimable_by_others


class Acme(ExtensionPlugin):
    """A plugin from elsewhere, or a shipped one."""

    may_claim = (ClaimScope(known.CPU_QUOTA, Level.POD), ClaimScope(known.CPU_SHARES, Level.POD))

    def setup(self, client, metric_cache, states_informer): ...
    async def run(self, stop): ...


def test_only_plugins_of_other_distributions_are_named():
    """By their distribution, not by how it is shown; one registered by hand is from elsewhere."""
    registry = PluginRegistry()
    for name, distribution in (("A", "koordlet"), ("B", "acme"), ("C", "")):
        source = f"{name} = module:{name} (koordlet 1.0)"
        view = registry.from_source(source, "1.0", distribution)
        view.register_qos_ext_plugin(name, FeatureSpec(), Acme())

    found = [(each.plugin, each.row.name) for each in claimable_by_others(registry)]

    assert found == [(name, each) for name in "BC" for each in ("cpu_quota", "cpu_shares")]
