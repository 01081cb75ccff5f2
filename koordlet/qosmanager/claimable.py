"""Claim scopes of plugins that did not come with koordlet, for `koordletctl doctor`."""

from collections.abc import Iterable

from koordlet.doctor.support import Claimable
from koordlet.plugin.registry import PluginRegistry, Registration


def claimable_by_others(registrations: Iterable[Registration]) -> list[Claimable]:
    """Return each value once per plugin; those of shipped plugins are in the doctor's own table."""
    return [
        Claimable(each.name, each.gates, may.resource)
        for each in registrations
        if each.origin.distribution != PluginRegistry.shipped
        for may in each.plugin.may_claim
    ]
