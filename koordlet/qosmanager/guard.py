"""Keeps a plugin from holding the event loop: interrupts it, and failing that ends the process.

Three timers, because each sees what the others cannot. A thread sees a step that sleeps. A CPU
timer (SIGPROF) sees one that takes memory, and one that works, in Python or in C code which checks
for signals, such as a catastrophic regular expression, while the thread waits for the interpreter
lock. Both raise PluginBlocked inside the plugin. What survives that is ended by a wall timer
(SIGALRM) whose default action needs no interpreter: faulthandler writes the stacks to a file, the
kernel ends the process. The timers are armed only while a plugin's step runs, so nothing else is
ever to blame.
"""

import faulthandler
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from koord.component.plugins import meter
from koord.component.plugins.errors import PluginBlocked
from koord.util.logs import get_logger
from koordlet.qosmanager.hang import HangRecord

LOOK = 0.1  # CPU seconds between two looks at a step; it can take gigabytes within a second
STACK_DEPTH = 15  # innermost frames that the log shows

log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardOptions:
    """Limits of a step of a plugin."""

    interrupt_after: float = 2.0  # seconds
    exit_after: float = 10.0  # seconds
    memory: int = 256 * 2**20  # bytes the process may grow by within one step


class LoopGuard:
    """Watches each step of a plugin; a StepGuard for koord.component.plugins.meter.

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
        signal.setitimer(signal.ITIMER_PROF, LOOK, LOOK)

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


_OURS = frozenset({__name__, meter.__name__})
