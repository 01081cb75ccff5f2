"""Follows the config file while the daemon runs: gates and log levels change at once."""

import asyncio

from koord.util.errors import OptionError
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger, parse_levels, set_levels
from koord.util.stop import Stop
from koordlet.daemon.configfile import ConfigChange, ConfigFile, compare, load_config
from koordlet.daemon.settings import Settings
from koordlet.host.dirwatch import DirectoryWatch

INTERVAL = 1.0  # seconds between two looks at the file when nothing tells of a change
SETTLING = 0.2  # seconds for which it has to stand still, and between two looks in any case
DRY_RUN = "dry-run"

log = get_logger("koordlet.daemon")


class LiveConfig:
    """Reads the config file again when it has changed and stands still, or when asked to (SIGHUP).

    With inotify no content is missed that stood for half a second; without, it has to stand two.
    A file that is gone or cannot be used changes nothing and is named by /healthz until mended.
    """

    def __init__(self, settings: Settings, file: ConfigFile) -> None:
        self._settings = settings
        self._path = file.path
        self._in_force = dict(file.values)
        self._watch = FileWatch(file.path)  # reads it once more: it may have changed meanwhile
        self._stirred = asyncio.Event()  # something has changed in the file's directory
        self._events = DirectoryWatch(self._stirred.set, files=True)
        self._due = False
        self._worth_a_line = False  # a reading that changes nothing: not that at the start
        self._problem = ""
        self._waiting: tuple[str, ...] = ()  # keys that changed and need a restart

    def ask(self) -> None:
        """Read the file soon, changed or not."""
        self._due = self._worth_a_line = True
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
            self._worth_a_line = True

    def health(self) -> PartHealth:
        """Degraded while the file cannot be used."""
        return PartHealth(Status.DEGRADED, self._problem) if self._problem else OK

    @property
    def waiting(self) -> tuple[str, ...]:
        """Keys whose new value waits for a restart."""
        return self._waiting

    async def _reload(self) -> None:
        try:
            read = await asyncio.to_thread(load_config, self._path)
            self._apply(read)
        except OptionError as err:
            self._refuse(err)
        else:
            self._problem = ""

    def _refuse(self, err: OptionError) -> None:
        self._due = isinstance(err.__cause__, FileReadError)  # it may return as it was
        problem = str(err) if str(self._path) in str(err) else f"{self._path}: {err}"
        if problem != self._problem:
            log.error("config.refused", error=problem)
        self._problem = problem

    def _apply(self, read: ConfigFile) -> None:
        """Put a file's live entries into force, all or none.

        Raises:
            OptionError: something in it cannot be used.
        """
        settings, change = self._settings, compare(self._in_force, read.values)
        settings.flags.set_from_config(read.values, read.where)  # checks what waits, too
        try:
            settings.flags.set_from_config(change.in_force, read.where)
            wanted = settings.plugins.gate_values(settings.options.feature_gates.value)
            settings.plugins.check_names(DRY_RUN, settings.options.dry_run.value.plugins)
            switched = settings.gates.replace_map(wanted)
        except OptionError:
            settings.flags.set_from_config(self._in_force)
            raise
        self._settle_dry_run(change, read)
        set_levels(parse_levels(settings.options.log_level.value))
        self._in_force = dict(change.in_force)
        self._waiting = change.needs_restart
        if self._worth_a_line or change.live or change.needs_restart:
            log.info(
                "config.read",
                path=str(self._path),
                changed=list(change.live),
                on=sorted(gate for gate in switched if settings.gates.enabled(gate)),
                off=sorted(gate for gate in switched if not settings.gates.enabled(gate)),
            )
        if change.needs_restart:
            log.warning("config.needs_restart", keys=list(change.needs_restart))

    def _settle_dry_run(self, change: ConfigChange, read: ConfigFile) -> None:
        """A file that says something about dry-run, or no longer does, wins over the hand."""
        if DRY_RUN in read.values or DRY_RUN in change.live:
            forgotten = self._settings.dry_run.forget()
            if forgotten:
                log.warning("dry_run.as_configured", switched_by_hand_before=dict(forgotten))
