"""The effective configuration as text, and what of the settings has no effect."""

from collections.abc import Iterable
from pathlib import Path

import yaml

from koord.component.features import FeatureGates
from koord.component.flags import FlagSet
from koord.util.errors import KoordError

LogEvent = tuple[str, dict[str, object]]
"""Name of a log event, and its facts."""


def effective_text(document: object) -> str:
    """Return the document of a configuration as YAML that reads back."""
    return str(yaml.safe_dump(document, sort_keys=False))


def write_configuration(document: object, path: Path) -> None:
    """Write the effective configuration.

    Raises:
        KoordError: the file cannot be written.
    """
    try:
        path.write_text(effective_text(document))
    except OSError as err:
        hint = "name a file that this user can write to"
        raise KoordError(f"--write-config-to: {path}: found {err.strerror}; {hint}") from err


def without_effect(
    flags: FlagSet, gates: FeatureGates, plugin_problems: Iterable[str]
) -> list[LogEvent]:
    """What the user should know about the settings: flags and gates that do nothing, plugins that
    could not be registered.
    """
    found: list[LogEvent] = []
    if inert := flags.inert_set():
        found.append(("flags.without_effect", {"flags": inert}))
    if missing := gates.not_built():
        found.append(("gates.not_built", {"gates": missing}))
    return found + [("plugin.problem", {"error": problem}) for problem in plugin_problems]
