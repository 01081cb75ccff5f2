"""Follows the config file while the daemon runs: the last good configuration stays in force."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Generic, TypeVar

from koord.component.config.document import ParseConfig, read_config
from koord.util.dirwatch import DirectoryWatch
from koord.util.errors import KoordError
from koord.util.filewatch import FileReadError, FileWatch
from koord.util.health import OK, PartHealth, Status
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

        count takes the outcome of each reading: applied or refused.
        """
        self._count = count
        self._path = path
        self._parse = parse
        self._apply = apply
        self._watch = FileWatch(path)
        self._stirred = asyncio.Event()  # something has changed in the file's directory
        self._events = DirectoryWatch(self._stirred.set, files=True)
        self._due = False
        self._worth_a_line = False  # a reading that changes nothing: not that at the start
        self._problem = ""
        self._needs_restart: tuple[str, ...] = ()

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
        """Degraded while the file is rejected."""
        return PartHealth(Status.DEGRADED, self._problem) if self._problem else OK

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
            log.error("config.refused", error=problem)
        self._problem = problem

    def _note(self, applied: AppliedConfig) -> None:
        self._needs_restart = applied.needs_restart
        if self._worth_a_line or applied.changed or applied.needs_restart:
            changed = list(applied.changed)
            log.info("config.read", path=str(self._path), changed=changed, **applied.facts)
        if applied.needs_restart:
            log.warning("config.needs_restart", keys=list(applied.needs_restart))
