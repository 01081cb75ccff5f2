"""The real Prometheus, which scrapes what a test names."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from tests.support.real_apiserver.served import TIMEOUT


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def made(directory: Path) -> Path:
    """A directory that is new."""
    directory.mkdir()
    return directory


@contextlib.asynccontextmanager
async def scraping(
    directory: Path, targets: Mapping[str, str], others: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run Prometheus, which scrapes each target (host:port) every second.

    targets: agents by node, with the labels that our PodMonitor adds; others: programs by job.
    Yields its URL and process, when it is ready.
    """
    made(directory)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "900ms"},
        "scrape_configs": [
            {
                "job_name": "koordlet",
                "static_configs": [
                    {"targets": [target], "labels": {"kubernetes_node": node, "node": node}}
                    for node, target in targets.items()
                ],
            },
            *(
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in (others or {}).items()
            ),
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        await _until_ready(url, process)
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until_ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(TIMEOUT):
        while process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/-/ready") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise AssertionError(f"Prometheus ended with status {process.returncode}")
