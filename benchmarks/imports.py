"""Memory cost of the dependencies, and those that a default run does not load."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.process import running_daemon
from benchmarks.table import Row

# In this order, each on top of those before it: shared modules count for the first.
USED = ("asyncio", "aiohttp.web", "prometheus_client", "koord.util.logs")
NAMES = {"koord.util.logs": "structlog, without rich"}
# Each alone on top of the daemon: modules that only some options or only koordletctl need.
ON_DEMAND = ("psutil", "yaml", "rich.live", "pyroute2")
UNWANTED = (
    "rich",
    "yaml",
    "numpy",
    "msgspec",
    "httptools",
    "hypothesis",
    "psutil",
    "pyroute2",
)  # in a default run

_RSS = "int(open('/proc/self/status').read().split('VmRSS:')[1].split()[0]) / 1024"
_PROBE = f"""
import importlib, sys
def rss():
    return {_RSS}
print(rss())
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(rss())
"""
DAEMON = "koordlet.cli.daemon"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield MiB of RSS per import, of a daemon with its first pass and scrape done, and presence
    of modules."""
    bare, *after = _rss_after(*USED, DAEMON)
    names = [NAMES.get(name, name) for name in USED]
    yield Row("RSS of a bare interpreter", bare, "MiB")
    before = bare
    for name, rss in zip([*names, "koordlet itself, all layers"], after, strict=True):
        yield Row(f"import {name}", rss - before, "MiB", None, bare, "a bare interpreter")
        before = rss
    for name in ON_DEMAND:
        daemon, more = _rss_after(DAEMON, name)[1:]
        yield Row(f"import {name} (on demand)", more - daemon, "MiB", None, bare,
                  "a bare interpreter")  # fmt: skip
    rss, modules = _default_daemon()
    yield Row("RSS of a default daemon, no pods", rss, "MiB", None, bare, "a bare interpreter")
    for name in UNWANTED:
        yield Row(f"a default daemon imports {name}", float(name in modules), "", 0.0)


def _rss_after(*modules: str) -> list[float]:
    """RSS in MiB of a fresh interpreter: bare, and after importing each module."""
    command = [sys.executable, "-c", _PROBE, *modules]
    response = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(line) for line in response.stdout.split()]


def _default_daemon() -> tuple[float, set[str]]:
    """RSS in MiB of a daemon at work, and the modules it has imported."""
    with tempfile.TemporaryDirectory() as name:
        result = Path(name) / "watched.json"
        program = [sys.executable, "-m", "benchmarks.watched", str(result), "0.1"]
        with running_daemon(Path(name), program=program) as daemon:
            measured = b"koordlet_node_used_cpu_cores{"
            daemon.wait(lambda: measured in daemon.fetch("/metrics"), "measure the node")
            rss = daemon.rss_mib()
            os.kill(daemon.pid, signal.SIGUSR1)
            daemon.wait(result.exists, "write what it saw")
            return rss, set(json.loads(result.read_text())["modules"])
