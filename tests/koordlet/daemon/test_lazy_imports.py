"""What is for few kernels is not imported before it is used: it would cost every node memory."""

import os
import subprocess
import sys

import pytest

from tests.support.kube.certificates import Authority

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


def test_the_command_reads_no_cas_of_the_system(tmp_path):
    """The contexts that aiohttp makes when it is imported wait for a connection that needs them."""
    program = (
        "from koordlet.cli.koordlet import main\n"
        "main(['--version'])\n"
        "from aiohttp import connector\n"
        "for one in connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED:\n"
        "    print(one.cert_store_stats()['x509_ca'])"
    )
    environ = {**os.environ, "SSL_CERT_FILE": str(Authority(tmp_path).certificate)}

    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )

    assert done.stdout.split()[-2:] == ["0", "0"]
