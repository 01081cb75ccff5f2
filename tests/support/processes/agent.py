"""The real process on a host below a directory, as a node of a cluster or alone."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import LAID_OUT, host_flags, kubeconfig
from tests.support.processes.prometheus import free_port, made

BUSY_POD = "6f3c1a9e-0000-4000-8000-000000000001"
SUPPRESSING = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "spec": {
        "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"},
    },
}


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


@contextlib.asynccontextmanager
async def running_alone(
    directory: Path, node: str, *args: str, lay_out: Callable[[FakeHost], None] | None = None
) -> AsyncIterator[str]:
    """Run it without a cluster, with a busy best-effort pod that it squeezes. Yields host:port.

    lay_out: adds to the host before it starts. The control socket is directory/run/koordlet.sock.
    """
    host = FakeHost(made(directory) / "host")
    host.add_pod(BUSY_POD, KubeQoS.BEST_EFFORT)
    if lay_out is not None:
        lay_out(host)
    slo, port = directory / "nodeslo.json", free_port()
    slo.write_text(json.dumps(SUPPRESSING))
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, LAID_OUT, "--standalone", f"--node-name={node}",
            f"--addr=127.0.0.1:{port}", f"--run-dir={directory / 'run'}",
            "--network-collector-interval=1s", f"--nodeslo-file={slo}",
            *host_flags(host.paths), *args, stderr=log,
        )  # fmt: skip
    working = asyncio.create_task(_work(host))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        working.cancel()
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)
        sys.stderr.write((directory / "log").read_text())


async def _work(host: FakeHost) -> None:
    while True:
        host.use_cpu(0.2, idle=0.2)
        host.use_network("eth0", 100_000, 50_000)
        await asyncio.sleep(0.2)
