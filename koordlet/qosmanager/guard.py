"""Keep a plugin from holding the event loop: interrupt it, else end the process."""

import faulthandler
import mmap
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from koord.component.plugins import execution
from koord.component.plugins.registry import PluginBlocked
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory, OwnedPath

_BOOT_ID = 36  # bytes at the start of the step file, then one byte length and the name
_NAME = 200  # longest name, in bytes
_SIZE = _BOOT_ID + 1 + _NAME
_LIMIT = 64 * 1024  # bytes of either file that are read back
_AFRESH = os.O_RDWR | os.O_CREAT | os.O_TRUNC

log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, slots=True)
class HangReport:
    """End of the previous process inside a step of that plugin (empty: unknown)."""

    plugin: str
    stacks: str


class HangRecord:
    """Record of the running step; costs no system call per step."""

    def __init__(self, directory: OwnedDirectory | None, boot_id: str) -> None:
        """Start afresh; read what is there with `previous_hang` first. None: keep no record."""
        self.stacks: IO[bytes]
        if directory is None:
            self._map = mmap.mmap(-1, _SIZE)
            self.stacks = open(os.memfd_create("plugin-hang"), "wb")  # noqa: SIM115 - see close
        else:
            step, stacks = _files(directory)
            with open(step.open(_AFRESH), "r+b") as file:
                file.write(boot_id.encode().ljust(_SIZE, b"\0"))
                file.flush()
                self._map = mmap.mmap(file.fileno(), _SIZE)
            self.stacks = open(stacks.open(_AFRESH), "wb")  # noqa: SIM115 - see close
        self._notes: dict[str, bytes] = {}

    @classmethod
    def open(cls, directory: OwnedDirectory | None, boot_id: str) -> "HangRecord":
        """A record in the directory, or one for this process only where that cannot be written."""
        try:
            return cls(directory, boot_id)
        except OSError as err:
            log.warning("hang_record.write_failed", path=str(directory), error=str(err))
            return cls(None, boot_id)

    def begin(self, plugin: str) -> None:
        """Note that a step of that plugin runs."""
        note = self._notes.get(plugin)
        if note is None:
            name = plugin.encode()[:_NAME]
            note = self._notes[plugin] = bytes([len(name)]) + name
        self._map[_BOOT_ID : _BOOT_ID + len(note)] = note

    def end(self) -> None:
        """Note that no plugin runs."""
        self._map[_BOOT_ID] = 0

    def close(self) -> None:
        self._map.close()
        self.stacks.close()


def previous_hang(directory: OwnedDirectory, boot_id: str) -> HangReport | None:
    """Return the hang of the process before this one; None: none, or the machine rebooted since."""
    step, stacks = _files(directory)
    try:
        text, noted = _head(stacks).decode(errors="replace"), _head(step)
    except FileNotFoundError:
        return None
    except OSError as err:
        log.warning("hang_record.read_failed", path=str(directory), error=str(err))
        return None
    if not text or len(noted) != _SIZE or noted[:_BOOT_ID].rstrip(b"\0") != boot_id.encode():
        return None
    name = noted[_BOOT_ID + 1 : _BOOT_ID + 1 + noted[_BOOT_ID]]
    return HangReport(name.decode(errors="replace"), text)


def _files(directory: OwnedDirectory) -> tuple[OwnedPath, OwnedPath]:
    return directory / "plugin-step", directory / "plugin-hang"


def _head(file: OwnedPath) -> bytes:
    """The first bytes of a file. Raises OSError."""
    with open(file.open(os.O_RDONLY), "rb") as opened:
        return opened.read(_LIMIT)


CHECK_INTERVAL = (
    0.1  # CPU seconds between two looks at a step; it can take gigabytes within a second
)
STACK_DEPTH = 15  # innermost frames that the log shows


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardOptions:
    """Limits of a step of a plugin."""

    interrupt_after: float = 2.0  # seconds
    exit_after: float = 10.0  # seconds
    memory: int = 256 * 2**20  # bytes the process may grow by within one step


class LoopGuard:
    """Watches each step of a plugin; a StepGuard for koord.component.plugins.execution.

    start, enter, leave and close are called on the main thread, which runs the event loop.
    """

    def __init__(
        self, record: HangRecord, options: GuardOptions, memory: Callable[[], int] = lambda: 0
    ) -> None:
        self._record = record
        self._options = options
        self._memory = memory
        self._step = ""  # the plugin whose step runs; empty: none
        self._since = 0.0
        self._first_memory: int | None = None  # bytes at the first look at the running step
        self._reported: set[str] = set()  # plugins whose stack the log has
        self._interrupted: queue.SimpleQueue[tuple[str, float, str]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._stepping = threading.Event()  # set by steps, cleared when the thread finds none
        self._previous: dict[signal.Signals, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="plugin guard", daemon=True)

    def start(self) -> None:
        """Take over SIGALRM and SIGPROF and start to watch."""
        self._previous = {
            signal.SIGPROF: signal.signal(signal.SIGPROF, self._interrupt),
            signal.SIGALRM: signal.signal(signal.SIGALRM, signal.SIG_DFL),
        }
        faulthandler.register(signal.SIGALRM, file=self._record.stacks, chain=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching and restore the signal handlers."""
        self._ended.set()
        self._stepping.set()
        self._thread.join()
        self._report()
        self.leave()
        faulthandler.unregister(signal.SIGALRM)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._record.close()

    def enter(self, name: str) -> None:
        """Begin to watch a step of that plugin."""
        self._record.begin(name)
        self._since = time.monotonic()
        self._first_memory = None
        self._step = name
        if not self._stepping.is_set():
            self._stepping.set()
        signal.setitimer(signal.ITIMER_REAL, self._options.exit_after)
        signal.setitimer(signal.ITIMER_PROF, CHECK_INTERVAL, CHECK_INTERVAL)

    def leave(self) -> None:
        """End watching: the step ended."""
        self._step = ""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._record.end()

    def forget(self, name: str) -> None:
        """Log the stack of the plugin's next long step again: it has worked since the last one."""
        self._reported.discard(name)

    def _watch(self) -> None:
        """Run on the guard's thread."""
        main = threading.main_thread().ident
        while main is not None and not self._ended.wait(self._options.interrupt_after / 4):
            if self._step and self._held() >= self._options.interrupt_after:
                signal.pthread_kill(main, signal.SIGPROF)
            self._report()
            self._rest()

    def _rest(self) -> None:
        """Wait while no step runs: without plugins the thread costs nothing."""
        self._stepping.clear()
        if not (self._step or self._ended.is_set()) and self._interrupted.empty():
            self._stepping.wait()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGPROF: raise in the plugin's code, unless the step is just ending."""
        if not self._step or frame is None or frame.f_globals.get("__name__") in _OURS:
            return
        found = self._excess()
        if not found:
            return
        stack = "".join(traceback.format_stack(frame)[-STACK_DEPTH:])
        self._interrupted.put((self._step, self._held(), stack))
        raise PluginBlocked(
            f"plugin {self._step}: wanted the event loop back within "
            f"{self._options.interrupt_after:g} s, found {found}; "
            "await, or move the work to asyncio.to_thread"
        )

    def _excess(self) -> str:
        """Return the limit that the running step exceeds; empty: none yet."""
        memory = self._memory()
        if self._first_memory is None:
            self._first_memory = memory
        if memory - self._first_memory > self._options.memory:
            return f"that it grew the process by more than {self._options.memory >> 20} MiB"
        held = self._held()
        return f"it held for {held:.1f} s" if held >= self._options.interrupt_after else ""

    def _held(self) -> float:
        return time.monotonic() - self._since

    def _report(self) -> None:
        """Log from here, not from the signal handler, which may have interrupted the logger.

        Each plugin's stack once: the log says of each further time that the plugin failed.
        """
        while not self._interrupted.empty():
            plugin, held, stack = self._interrupted.get()
            if plugin not in self._reported:
                self._reported.add(plugin)
                log.error("plugin.blocked", plugin=plugin, held_s=round(held, 1), stack=stack)


_OURS = frozenset({__name__, execution.__name__})
