"""What is for few kernels is not imported before it is used: it would cost every node memory."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from importlib.metadata import entry_points
import koordlet.cli.daemon, koordlet.daemon.run
for entry in entry_points(group="koordlet.qos_plugins"):
    entry.load()
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The modules of a daemon with all plugins that are installed, before it does anything."""
    run = [sys.executable, "-c", PROGRAM]
    return set(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "koordlet.collectors.cold_page",
        "koordlet.collectors.devices",
        "koordlet.collectors.resctrl",
        "koordlet.host.devices",
        "koordlet.host.net.guard",
        "koordlet.host.net.tc.kernel",
        "koordlet.host.perf",
        "koordlet.nvml",
        "koordlet.podresources",
        "koordlet.runtimehooks",
        "koordlet.server.page",
        "pyroute2",
    ],
)
def test_it_is_not_imported(imported, module):
    assert module not in imported
    assert "koordlet.host.objects" in imported
