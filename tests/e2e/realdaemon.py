"""The real process on a host below a directory, as a node of a cluster."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from daemonflags import LAID_OUT, host_flags, kubeconfig

from koordlet.plugin.testing import FakeHost


@contextlib.asynccontextmanager
async def running(
    directory: Path, host: FakeHost, server: str, node: str, *args: str, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it against the server at that URL; its output is in directory/log, printed at the end.

    It must end at once after SIGTERM and with status 0, unless the test kills it.
    """
    config = directory / "kubeconfig"
    config.write_text(kubeconfig(server, token))
    with (directory / "log").open("ab") as log:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, LAID_OUT,
            f"--kubeconfig={config}",
            f"--node-name={node}",
            "--addr=127.0.0.1:0",
            f"--run-dir={directory / 'run'}",
            *host_flags(host.paths),
            *args,
            stderr=log, env=os.environ,
        )  # fmt: skip
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        ended = await asyncio.wait_for(daemon.wait(), 60)
        sys.stderr.write((directory / "log").read_text())
    assert ended in (0, -signal.SIGKILL)
