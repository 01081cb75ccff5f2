"""What commands beside the daemon share: the plugins, and values of options."""

import argparse

from koord.controlplane.commands import installed
from koord_descheduler.framework.registry import PluginRegistry


def percents(text: str) -> dict[str, float]:
    """Read the value of an option: cpu=45,memory=55."""
    found = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            raise argparse.ArgumentTypeError(f"wanted cpu=45,memory=55, found {text!r}") from None
    return found


def installed_plugins(name: str) -> PluginRegistry:
    """The plugins that are installed; what is wrong with one is a warning of the command."""
    return installed(name, PluginRegistry())
