"""The real process on a host below a directory, as a node of a cluster."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from koordlet.plugin.testing import FakeHost


@contextlib.asynccontextmanager
async def running(
    directory: Path, host: FakeHost, server: str, node: str, *args: str, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it against the server at that URL; what it says is in directory/log, and told at the end.

    It must end well, at once when it is told to and with status 0, unless the test kills it.
    """
    kubeconfig, roots = directory / "kubeconfig", host.paths
    kubeconfig.write_text(_kubeconfig(server, token))
    with (directory / "log").open("ab") as log:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koordlet.cli.koordlet",
            f"--kubeconfig={kubeconfig}",
            f"--node-name={node}",
            "--addr=127.0.0.1:0",
            f"--run-dir={directory / 'run'}",
            f"--cgroup-root-dir={roots.cgroup}",
            f"--proc-root-dir={roots.proc}",
            f"--sys-root-dir={roots.sys}",
            f"--sys-fs-root-dir={roots.sysfs}",
            f"--var-run-root-dir={roots.var_run}",
            f"--var-lib-kubelet-dir={roots.kubelet}",
            *args,
            stderr=log, env=os.environ,
        )  # fmt: skip
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        ended = await asyncio.wait_for(daemon.wait(), 15)
        sys.stderr.write((directory / "log").read_text())
    assert ended in (0, -signal.SIGKILL)


def _kubeconfig(server: str, token: str) -> str:
    user = {"token": token} if token else {}
    return json.dumps(
        {
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": user}],
        }
    )
