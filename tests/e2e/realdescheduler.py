"""The real process of koord-descheduler, against a server."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from daemonflags import kubeconfig


@contextlib.asynccontextmanager
async def running_descheduler(
    directory: Path, server: str, config: dict[str, Any]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it with this configuration; its output is in directory/descheduler.log.

    It must end at once after SIGTERM and with status 0, unless the test kills it.
    """
    access = directory / "descheduler.kubeconfig"
    access.write_text(kubeconfig(server))
    file = directory / "descheduler.json"
    file.write_text(json.dumps({**config, "clientConnection": {"kubeconfig": str(access)}}))
    log = directory / "descheduler.log"
    with log.open("ab") as output:
        daemon = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "koord_descheduler.cli.descheduler",
            f"--config={file}", "--secure-port=0", stderr=output,
        )  # fmt: skip
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        ended = await asyncio.wait_for(daemon.wait(), 60)
        sys.stderr.write(log.read_text())
    assert ended in (0, -signal.SIGKILL)


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    """The events of that name in its log."""
    log = directory / "descheduler.log"
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in found if entry["event"] == name]
