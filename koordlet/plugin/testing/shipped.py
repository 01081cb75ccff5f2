"""The plugins that ship with koordlet, as far as they stand in the way of one under test."""

from collections.abc import Collection, Iterator
from functools import cache
from importlib.metadata import entry_points

from koord.component.features import FeatureSpec
from koord.component.plugins.discovery import installed
from koordlet.executor.claims.claim import ClaimScope
from koordlet.features import GATES
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.registry import PluginRegistry, Registration


def claims_beside(
    plugin: ExtensionPlugin, gates: Collection[str] | None
) -> Iterator[tuple[str, tuple[ClaimScope, ...]]]:
    """Name and may_claim of the shipped plugins that are on beside the one under test.

    gates: those that are on; None: those that are on by default.
    """
    for entry in _shipped():
        is_on = any(_is_on(gate, entry.spec, gates) for gate in entry.gates)
        if is_on and entry.name != plugin.name and type(entry.plugin) is not type(plugin):
            yield entry.name, entry.plugin.may_claim


def _is_on(gate: str, spec: FeatureSpec | None, gates: Collection[str] | None) -> bool:
    if gates is not None:
        return gate in gates
    known = GATES.get(gate, spec)
    return known is not None and known.default


@cache
def _shipped() -> tuple[Registration, ...]:
    registry = PluginRegistry()
    for each in installed(entry_points(group=registry.group)):
        if each.distribution == registry.shipped:
            each.entry.load()(registry.from_source(each.source))
    return tuple(registry)
