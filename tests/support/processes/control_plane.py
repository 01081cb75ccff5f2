"""The real processes of the control plane, against a server."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.kube.daemon_flags import kubeconfig
from tests.support.processes.prometheus import free_port
from tests.support.real_apiserver.accounts import SYSTEM


@contextlib.asynccontextmanager
async def running_descheduler(
    directory: Path, server: str, config: dict[str, Any], *, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run koord-descheduler with this configuration; its output is in directory/descheduler.log.

    It must end at once after SIGTERM and with status 0, unless the test kills it.
    """
    async with _running("descheduler", directory, server, config, token) as daemon:
        yield daemon


@contextlib.asynccontextmanager
async def running_scheduler(
    directory: Path, server: str, config: dict[str, Any], *, port: int = 0, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run koord-scheduler with this configuration; its output is in directory/scheduler.log.

    port: of its metrics; 0: none. It must end as running_descheduler says.
    """
    async with _running("scheduler", directory, server, config, token, f"--port={port}") as daemon:
        yield daemon


def scheduler_config(
    profile: str, *plugins: str, args: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The configuration of one profile with these plugins besides the default ones.

    args: by plugin.
    """
    enabled = [{"name": name} for name in plugins]
    found: dict[str, Any] = {
        "schedulerName": profile,
        "plugins": {"multiPoint": {"enabled": enabled}},
    }
    if args:
        found["pluginConfig"] = [{"name": name, "args": each} for name, each in args.items()]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceNamespace": SYSTEM},
        "profiles": [found],
    }


@contextlib.asynccontextmanager
async def running_manager(
    directory: Path, server: str, *flags: str, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run koord-manager with its defaults and flags; its output is in directory/manager.log.

    It must end as running_descheduler says.
    """
    config = {"apiVersion": "manager/v1alpha1", "kind": "ManagerConfiguration"}
    async with _running("manager", directory, server, config, token, "--port=0", *flags) as daemon:
        yield daemon


@contextlib.asynccontextmanager
async def running_control_plane(
    directory: Path, server: str, tokens: tuple[str, str] = ("", "")
) -> AsyncIterator[dict[str, str]]:
    """Run both, which have rounds each second. Yields where their metrics are, by job.

    tokens: of koord-descheduler and of koord-scheduler.
    """
    ports = {"koord-descheduler": free_port(), "koord-scheduler": free_port()}
    address = f"127.0.0.1:{ports['koord-descheduler']}"
    version = "descheduler/v1alpha2"
    thresholds = {
        "apiVersion": version,
        "kind": "LowNodeLoadArgs",
        "lowThresholds": {"cpu": 45},
        "highThresholds": {"cpu": 75},
    }
    descheduler = {
        "apiVersion": version,
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "1s",
        "leaderElection": {"resourceNamespace": SYSTEM},
        "healthzBindAddress": address,
        "metricsBindAddress": address,
        "profiles": [
            {
                "name": "p",
                "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                "pluginConfig": [{"name": "LowNodeLoad", "args": thresholds}],
            }
        ],
    }
    scheduler = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceNamespace": SYSTEM},
        "profiles": [{"schedulerName": "koord-scheduler"}],
    }
    port = ports["koord-scheduler"]
    async with (
        running_descheduler(directory, server, descheduler, token=tokens[0]),
        running_scheduler(directory, server, scheduler, port=port, token=tokens[1]),
    ):
        yield {job: f"127.0.0.1:{port}" for job, port in ports.items()}


def events(directory: Path, name: str, program: str = "descheduler") -> list[dict[str, Any]]:
    """The events of that name in its log."""
    log = directory / f"{program}.log"
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in found if entry["event"] == name]


@contextlib.asynccontextmanager
async def _running(
    program: str, directory: Path, server: str, config: dict[str, Any], token: str, *flags: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    access, file = directory / f"{program}.kubeconfig", directory / f"{program}.json"
    access.write_text(kubeconfig(server, token))
    file.write_text(json.dumps({**config, "clientConnection": {"kubeconfig": str(access)}}))
    log = directory / f"{program}.log"
    with log.open("ab") as output:
        daemon = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name(f"koord-{program}"),
            f"--config={file}", "--secure-port=0", *flags, stderr=output,
        )  # fmt: skip
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        ended = await asyncio.wait_for(daemon.wait(), 60)
        sys.stderr.write(log.read_text())
    assert ended in (0, -signal.SIGKILL)
