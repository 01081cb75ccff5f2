"""A config file of flags: its keys are flag names, and some take effect while the daemon runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from koord.component.config.document import ConfigDocument, parse_document, read_config
from koord.component.config.follower import AppliedConfig
from koord.component.features import FeatureGates
from koord.component.flags import Flag, FlagSet
from koord.util.errors import OptionError


@dataclass(frozen=True, slots=True)
class FlagChange:
    """The difference of a newly read document to the entries in force."""

    in_force: Mapping[str, object]  # entries to go on with: live ones new, the others as before
    live: tuple[str, ...]  # keys that take effect at once
    needs_restart: tuple[str, ...]  # keys whose new value (or absence) waits for a restart


def parse_flag_document(data: bytes, path: Path) -> ConfigDocument:
    """Return the entries of a config file of flags.

    Raises:
        OptionError: as parse_document. Keys and values are checked by FlagSet.set_from_config.
    """
    return parse_document(data, path, keys="flag names")


def parse_command_line(
    flags: FlagSet, argv: Sequence[str], config: Flag[str]
) -> ConfigDocument | None:
    """Set the flags from a command line, and from the file that config names; None: it names none.

    Raises:
        OptionError: a flag or an entry of the file cannot be used.
        HelpRequested: the user asked for help.
    """
    if rest := flags.parse(argv):
        raise OptionError("command line", rest[0], "only flags are expected, like --name=value")
    if not config.value:
        return None
    document = read_config(Path(config.value), parse_flag_document)
    flags.set_from_config(document.values, document.where)
    return document


class LiveFlags:
    """Puts the live entries of newly read documents into force, feature gates among them.

    live names their keys. gate_values checks the flags together, which are set by then, and
    returns the gates to switch; it raises OptionError. applied is called after each change with
    the document and the live keys that differ.
    """

    def __init__(
        self,
        flags: FlagSet,
        gates: FeatureGates,
        document: ConfigDocument,
        *,
        live: Collection[str],
        gate_values: Callable[[], Mapping[str, bool]],
        applied: Callable[[ConfigDocument, Collection[str]], None],
    ) -> None:
        """The document is the one that the daemon has started with."""
        self._flags = flags
        self._gates = gates
        self._live = live
        self._gate_values = gate_values
        self._applied = applied
        self._in_force = dict(document.values)

    def apply(self, document: ConfigDocument) -> AppliedConfig:
        """Put a document's live entries into force, all or none.

        Raises:
            OptionError: something in it cannot be used.
        """
        change = compare(self._in_force, document.values, self._live)
        self._flags.set_from_config(document.values, document.where)  # checks what waits, too
        try:
            self._flags.set_from_config(change.in_force, document.where)
            switched = self._gates.replace_map(self._gate_values())
        except OptionError:
            self._flags.set_from_config(self._in_force)
            raise
        self._in_force = dict(change.in_force)
        self._applied(document, change.live)
        return AppliedConfig(
            changed=change.live,
            needs_restart=change.needs_restart,
            facts={
                "on": sorted(gate for gate in switched if self._gates.enabled(gate)),
                "off": sorted(gate for gate in switched if not self._gates.enabled(gate)),
            },
        )


def compare(
    before: Mapping[str, object], after: Mapping[str, object], live: Collection[str]
) -> FlagChange:
    """Return the change from the entries in force to newly read ones."""
    differing = sorted(key for key in before.keys() | after.keys() if _differ(before, after, key))
    in_force = {key: value for key, value in before.items() if key not in live}
    in_force |= {key: value for key, value in after.items() if key in live}
    return FlagChange(
        in_force,
        live=tuple(key for key in differing if key in live),
        needs_restart=tuple(key for key in differing if key not in live),
    )


def _differ(before: Mapping[str, object], after: Mapping[str, object], key: str) -> bool:
    return key not in before or key not in after or before[key] != after[key]
