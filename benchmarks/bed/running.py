"""The bed and the program under measurement, as processes."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.bed.machine import cpu_seconds, tree
from benchmarks.tree import NotHereError

HERE = Path(__file__).parent
BINARY = HERE.parents[1] / "build" / "bed"
_USAGE = {"hot": 0.1, "low": 0.6, "hotPct": 85, "lowPct": 15, "midPct": 50}
_TIMEOUT = 240.0  # seconds until the program is idle
_QUIET = 2  # seconds below _IDLE
_IDLE = 0.3  # cores; NodeMetrics cost some

Json = dict[str, Any]


class Bed:
    """An API server in memory, and a program that talks to it; a `with` block."""

    def __init__(
        self, *, port: int = 29000, cores: int = 1, binary: str = "", keep: bool = False
    ) -> None:
        """cores: GOMAXPROCS. binary "": it is built. keep: the directory with the logs."""
        self.url = f"http://127.0.0.1:{port}"
        self._address = f"127.0.0.1:{port}"
        self._cores, self._binary, self._keep = cores, binary, keep
        self._processes: list[subprocess.Popen[bytes]] = []
        self._extra: list[tuple[subprocess.Popen[bytes], Path]] = []

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix="bed-"))
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self.url)))
        self.log = self.directory / "program.log"
        try:
            command = [self._binary or built(), "-addr", self._address]
            environ = {"GOMAXPROCS": str(self._cores), "GOGC": "300"}
            self.bed = self._start(command, self.directory / "bed.log", environ)
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end()

    def seed(self, nodes: int, pods_per_node: int, refresh: float) -> Json:
        """Make the nodes, with pods that run and NodeMetrics that are renewed every refresh s."""
        metric = {**_USAGE, "refresh": refresh}
        body = {"nodes": nodes, "podsPerNode": pods_per_node, "zones": 3, "metric": metric}
        return self.call("/bed/seed", body)

    def stats(self) -> Json:
        """Requests and CPU seconds since the start or the last reset."""
        return self.call("/bed/stats")

    def call(self, path: str, body: object = None, timeout: float = 120) -> Json:
        """Ask the bed itself: GET, or POST with a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            found: Json = json.loads(response.read())
            return found

    def run(self, command: Sequence[str], config: Json) -> None:
        """Start the program; {kubeconfig}, {config} and {dir} are filled in."""
        path = self.directory / "config.json"
        path.write_text(json.dumps(config))
        filled = {"kubeconfig": self.kubeconfig, "config": path, "dir": self.directory}
        argv = [word.format(**filled) for word in command]
        self.started = time.time()
        self.program = self._start(argv, self.log, {"KUBECONFIG": str(self.kubeconfig)})

    def run_beside(self, name: str, command: Sequence[str], config: Json) -> None:
        """Start one of several programs, with files of its own: NAME.json and NAME.log."""
        path, log = self.directory / f"{name}.json", self.directory / f"{name}.log"
        path.write_text(json.dumps(config))
        argv = [word.format(config=path) for word in command]
        environ = {"KUBECONFIG": str(self.kubeconfig)}
        self._extra.append((self._start(argv, log, environ), log))

    def check(self) -> None:
        """Raise SystemExit with the end of its log if the program has ended."""
        _check(self.program, self.log)

    def check_all(self) -> None:
        """Raise SystemExit as check, about each of several programs."""
        for program, log in self._extra:
            _check(program, log)

    def logged(self, pattern: str) -> float:
        """Return after how many seconds the program had logged a line that has the pattern.

        On a machine that does much else, a program that starts looks idle.
        """
        wanted, end = re.compile(pattern), time.time() + _TIMEOUT
        while time.time() < end:
            time.sleep(0.2)
            self.check()
            if wanted.search(self.log.read_text(errors="replace")):
                return round(time.time() - self.started, 1)
        raise SystemExit(f"wanted a log line with {pattern!r}, found none in {_TIMEOUT:g} s")

    def idle(self, needs: Sequence[str]) -> float:
        """Return after how many seconds the program watched these kinds and had little to do."""
        end, quiet, watching = time.time() + _TIMEOUT, 0, False
        last, at = cpu_seconds(tree(self.program.pid)), time.time()
        while time.time() < end and quiet < _QUIET:
            time.sleep(1)
            self.check()
            asked = self.stats()["requests"]
            watching = watching or all(f"watch {kind}" in asked for kind in needs)
            used, now = cpu_seconds(tree(self.program.pid)), time.time()
            quiet = quiet + 1 if watching and (used - last) / (now - at) < _IDLE else 0
            last, at = used, now
        if quiet < _QUIET:
            print(f"not idle after {_TIMEOUT:g} s; going on", file=sys.stderr)
        return round(time.time() - self.started - _QUIET, 1)

    def _start(
        self, argv: Sequence[str], log: Path, environ: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        with log.open("wb") as file:
            output: IO[bytes] = file
            process = subprocess.Popen(
                argv, stdout=output, stderr=output, env={**os.environ, **environ}
            )
        self._processes.append(process)
        return process

    def _wait(self) -> None:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{self.url}/healthz", timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise SystemExit("the bed does not answer")

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._keep:
            print("kept", self.directory, file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def built() -> str:
    """Build the bed if that is needed, and return its path.

    Raises:
        NotHereError: there is no Go.
    """
    if shutil.which("go") is None:
        raise NotHereError("wanted Go to build the bed, found none; install golang")
    command = ["go", "build", "-ldflags=-s -w", "-o", BINARY, "."]  # as the tests build it
    subprocess.run(command, cwd=HERE, check=True)
    return str(BINARY)


def _check(program: "subprocess.Popen[bytes]", log: Path) -> None:
    if program.poll() is not None:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(True)[-15:]))
        raise SystemExit(f"{program.args!r:.200} ended: {program.returncode}")


def _kubeconfig(url: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": {"server": url}}],
        "users": [{"name": "bed", "user": {"token": "bed"}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed"}}],
    }
