"""Follow the config file while the daemon runs; the last good configuration stays in force."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Generic, TypeVar

from koord.component.config.document import ConfigDocument, ParseConfig, parse_document, read_config
from koord.component.flags import FeatureGates, Flag, FlagSet
from koord.util.errors import KoordError, OptionError
from koord.util.filewatch import DirectoryWatch, FileReadError, FileWatch
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop

T = TypeVar("T")

INTERVAL = 1.0  # seconds between two looks at the file when the kernel does not notify
SETTLING = 0.2  # seconds without a change before it is read, and between two looks in any case

log = get_logger("koord.daemon")


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedConfig:
    """The effect of a newly read configuration on a running daemon."""

    changed: tuple[str, ...]  # keys that took effect at once
    needs_restart: tuple[str, ...] = ()  # keys whose new value (or absence) waits for a restart
    facts: Mapping[str, object] = field(default_factory=dict)  # more for the log


class ConfigFollower(Generic[T]):
    """Reads the config file again when it has changed and settled, or when asked to (SIGHUP).

    With inotify no content is missed that stood for half a second; without, it has to stand two.
    A file that is gone or rejected changes nothing, and /healthz names it until it is mended.

    parse runs in a worker thread. apply puts a configuration into force on the event loop, all or
    nothing; a coroutine may take its time. Both raise a KoordError to reject it.
    """

    def __init__(
        self,
        path: Path,
        parse: ParseConfig[T],
        apply: Callable[[T], AppliedConfig | Awaitable[AppliedConfig]],
        *,
        count: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        """The daemon has started with the file; it is read once more, as it may have changed.

        count takes the outcome of each reading: applied or refused (the file was rejected).
        """
        self._count = count
        self._path = path
        self._parse = parse
        self._apply = apply
        self._watch = FileWatch(path)
        self._stirred = asyncio.Event()  # something has changed in the file's directory
        self._events = DirectoryWatch(self._stirred.set, files=True)
        self._due = False
        self._log_next = False  # a reading that changes nothing: not that at the start
        self._problem = ""
        self._needs_restart: tuple[str, ...] = ()

    def ask(self) -> None:
        """Read the file soon, changed or not."""
        self._due = self._log_next = True
        self._stirred.set()

    async def run(self, stop: Stop) -> None:
        """Watch until stop."""
        self._events.open()
        try:
            while not stop.is_set():
                stirred = self._stirred.is_set()
                await self._look()
                if stirred or self._due:
                    await stop.sleep(SETTLING)
                else:
                    await stop.sleep(INTERVAL, self._stirred)
        finally:
            self._events.close()

    async def _look(self) -> None:
        self._stirred.clear()
        self._events.follow({self._path.parent, self._path.resolve().parent})
        if self._watch.changed():
            self._due = True  # at the next look: half of a file may be a valid file
        elif self._due or not self._path.exists():
            self._due = False
            await self._reload()
            self._log_next = True

    def health(self) -> PartHealth:
        """Degraded while the file is rejected."""
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    @property
    def needs_restart(self) -> tuple[str, ...]:
        """Keys whose new value waits for a restart."""
        return self._needs_restart

    async def _reload(self) -> None:
        try:
            found = self._apply(await asyncio.to_thread(read_config, self._path, self._parse))
            applied = await found if isawaitable(found) else found
        except KoordError as err:
            self._reject(err)
        else:
            self._problem = ""
            self._count("applied")
            self._note(applied)

    def _reject(self, err: KoordError) -> None:
        self._due = isinstance(err.__cause__, FileReadError)  # it may return as it was
        self._count("refused")
        problem = str(err) if str(self._path) in str(err) else f"{self._path}: {err}"
        if problem != self._problem:
            log.error("config.rejected", error=problem)
        self._problem = problem

    def _note(self, applied: AppliedConfig) -> None:
        self._needs_restart = applied.needs_restart
        if self._log_next or applied.changed or applied.needs_restart:
            changed = list(applied.changed)
            log.info("config.read", path=str(self._path), changed=changed, **applied.facts)
        if applied.needs_restart:
            log.warning("config.restart_required", keys=list(applied.needs_restart))


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
