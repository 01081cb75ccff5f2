"""The ruler of the ways: the product's files in which functions run while something happens.

A way goes from an event to what it leads to, for instance from a new pod to its Binding. A reader
who follows it opens these files; docs/ways.md lists them in their order.
"""

import dis
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import CO_NEWLOCALS, CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml
from aiohttp import web

from koord.util.simulatedclock import SimulatedClock
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.loopback_network import network_is_quiet
from tests.support.programs import REPOSITORY

PAGE = REPOSITORY / "docs" / "ways.md"
STEP = 0.25  # seconds of simulated time
_PRODUCT = re.compile(r"(koord\w*|plugins/koord\w*_plugins)/.*\.py")
_FUNCTION = CO_NEWLOCALS | CO_OPTIMIZED  # what the code of modules and of classes lacks
_CLOCKS = {"koord/util/simulatedclock.py": "koord/util/clock.py"}  # of tests: the real one
_TIMERS = ("koord/component/eventloops.py",)  # probes that no way leads to
_ENTRY = re.compile(r"^\d+\. `([^`]+\.py)`", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Map:
    """A way as the page has it: its heading, and the files in which functions may run at most."""

    heading: str
    most: int

    def files(self) -> list[str]:
        """Return the files that the page lists, in their order."""
        _, _, rest = PAGE.read_text().partition(f"\n## {self.heading}\n")
        return _ENTRY.findall(rest.partition("\n## ")[0])


POD = Map("From a pod to its Binding", 60)
NODE_METRIC = Map("From a NodeMetric to an eviction", 49)
NODE_SLO = Map("From a NodeSLO to a cfs quota", 55)


class Way:
    """The functions of the product that ran from begin to end, by file."""

    def __init__(self, last: str = "") -> None:
        """last: the qualified name of the function with whose return the way ends, if any."""
        self._last = last
        self._code: dict[CodeType, None] = {}  # in the order of their first calls
        self._runs = False
        self.ended = False

    def begin(self) -> None:
        """Record from now on."""
        self._runs = True
        sys.setprofile(self._note)

    def end(self) -> None:
        """Record no more: what the way leads to has happened."""
        sys.setprofile(None)  # of this thread; others go on without effect
        if self._runs:
            self._runs, self.ended = False, True

    def end_with(self, server: ApiServer, method: str, path: str) -> None:
        """End with the next such request, when the server has it. It is answered as any other."""

        async def arrive(request: web.Request) -> web.StreamResponse:
            self.end()
            return await server.answer(request)

        server.script(arrive, method=method, path=path)

    @property
    def functions(self) -> dict[str, list[str]]:
        """Qualified names of functions by file; a file comes where its first function ran."""
        found: dict[str, list[str]] = {}
        for code in self._code:
            path = Path(code.co_filename)
            if code.co_flags & _FUNCTION == _FUNCTION and path.is_relative_to(REPOSITORY):
                name = path.relative_to(REPOSITORY).as_posix()
                if _PRODUCT.fullmatch(name) and name not in _TIMERS:
                    found.setdefault(_CLOCKS.get(name, name), []).append(code.co_qualname)
        return found

    def check(self, page: Map) -> None:
        """Fail unless the files are those of the page, and not too many."""
        files, listed = self.functions, page.files()
        new = {name: names[:5] for name, names in files.items() if name not in listed}
        assert new == {}, f"in no list of {PAGE.name}: fold them, or add them to their way"
        gone = [name for name in listed if name not in files]
        assert gone == [], f"on this way no more: {gone}"
        assert len(files) <= page.most

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._runs:
            return
        code = frame.f_code
        if event == "return" and self._last == code.co_qualname:
            self.end()
        if event != "call" or code in self._code:
            return
        if frame.f_lasti <= _entry(code):  # else a coroutine goes on
            self._code[code] = None


@cache
def _entry(code: CodeType) -> int:
    """Return the offset that a coroutine or generator is beyond when it goes on, not begins."""
    for step in dis.get_instructions(code):
        if step.opname == "RESUME":
            return step.offset
    return 0


@contextmanager
def threads_recorded(way: Way) -> Iterator[None]:
    """Let threads that begin in this context be recorded, too, once the way begins."""
    threading.setprofile(way._note)
    try:
        yield
    finally:
        threading.setprofile(None)


async def walk(
    way: Way,
    clock: SimulatedClock,
    event: Callable[[], object],
    *,
    seconds: float = 0.0,
) -> None:
    """Cause the event, and let it happen until the way has ended.

    seconds: the simulated time that passes meanwhile at most; threads get real time after it.
    """
    end = clock.monotonic() + seconds
    way.begin()
    try:
        event()
        for turn in range(2000):
            if way.ended:
                return
            await network_is_quiet()
            if turn >= 10 and clock.monotonic() < end:  # the event is there first
                await clock.advance(min(STEP, end - clock.monotonic()))
    finally:
        way.end()
    raise AssertionError("the way has no end")


def shipped_config(component: str, file: str) -> str:
    """Return the configuration file in a ConfigMap of deploy/."""
    text = (REPOSITORY / "deploy" / component / "config.yaml").read_text()
    found: str = yaml.safe_load(text)["data"][file]
    return found
