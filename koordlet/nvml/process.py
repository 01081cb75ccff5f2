"""The helper as a process: a question, an answer, and its end whatever it does."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from koord.util.clock import Clock
from koord.util.firstof import first_of
from koordlet.nvml.answers import HelperFailed

MOST_BYTES = 4 << 20  # of an answer
END_LIMIT = 2.0  # seconds that a killed process may take to be gone
_SCRIPT = Path(__file__).with_name("helper.py")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "NVIDIA_VISIBLE_DEVICES")


class HelperProcess:
    """One running helper. Its caller limits how long an answer may take."""

    def __init__(self, process: asyncio.subprocess.Process, clock: Clock) -> None:
        self._process = process
        self._clock = clock

    @classmethod
    async def start(cls, environ: Mapping[str, str], clock: Clock) -> "HelperProcess":
        """Start one. environ: the daemon's; of it the helper gets what a library needs.

        Raises:
            HelperFailed: it cannot be started.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(_SCRIPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: environ[name] for name in _PASSED_ON if name in environ},
                limit=MOST_BYTES,
                start_new_session=True,
            )
        except OSError as err:
            raise HelperFailed(f"it cannot be started: {err.strerror or err}") from err
        return cls(process, clock)

    async def ask(self) -> bytes:
        """Return the next answer, a line.

        Raises:
            HelperFailed: it has ended, or says more than MOST_BYTES.
        """
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None  # noqa: S101 - for the type checker
        assert answers is not None  # noqa: S101
        try:
            given.write(b"\n")
            await given.drain()
            line = await answers.readline()
        except (OSError, ValueError) as err:
            raise HelperFailed(f"it cannot be asked: {err}") from err
        if not line.endswith(b"\n"):
            raise HelperFailed("it has ended")
        return line

    async def end(self) -> bool:
        """Kill it; return whether it is gone. One that waits in the kernel cannot be killed."""
        if self._process.returncode is None:
            self._process.kill()
            gone = asyncio.ensure_future(self._process.wait())
            timer = self._clock.timer(END_LIMIT)
            try:
                await first_of(gone, timer)
            finally:
                timer.cancel()
                gone.cancel()
        return self.gone

    @property
    def gone(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None
