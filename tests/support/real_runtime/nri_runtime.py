"""The runtime's side of NRI: the Go program of nriruntime/, which speaks JSON lines."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

TIMEOUT = 30.0  # seconds for one response
_LIMIT = 16 << 20  # bytes of a line

Json = dict[str, Any]


class NriRuntime:
    """A runtime that was started; see nriruntime/main.go."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        self._process = process
        self._stdin = process.stdin
        self._lines: dict[str, asyncio.Queue[Json]] = {}
        self._reading = asyncio.create_task(self._read(), name="nri runtime")

    async def ask(self, op: str, **fields: Any) -> Json:
        """Have it do something, and return its response."""
        self._stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        await self._stdin.drain()
        return await self.next(op)

    async def next(self, op: str) -> Json:
        """Return the next line about something."""
        return await asyncio.wait_for(self._of(op).get(), TIMEOUT)

    async def start(self, pods: list[Json] = (), containers: list[Json] = ()) -> None:  # type: ignore[assignment]
        """Offer the socket, with these as what runs already."""
        await self.ask("state", pods=list(pods), containers=list(containers))
        assert not (await self.ask("start"))["error"]
        await self.next("synchronized")  # of the plugins that it starts itself: none

    async def end(self, *, at_once: bool = False) -> None:
        """End it, as an upgrade or, at_once, kill -9 does."""
        if self._process.returncode is None:
            if at_once:
                self._process.kill()
            else:
                self._stdin.close()
            await asyncio.wait_for(self._process.wait(), TIMEOUT)
        await self._reading

    def _of(self, op: str) -> asyncio.Queue[Json]:
        return self._lines.setdefault(op, asyncio.Queue())

    async def _read(self) -> None:
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            found = json.loads(line)
            self._of(found["op"]).put_nowait(found)


@contextlib.asynccontextmanager
async def nri_runtime(binary: Path, socket: Path) -> AsyncIterator[NriRuntime]:
    """Run the program; its log goes to that of the test."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        binary,
        f"-socket={socket}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LIMIT,
    )
    runtime = NriRuntime(process)
    try:
        yield runtime
    finally:
        await runtime.end(at_once=True)


def sandbox(uid: str, group: str, **annotations: str) -> Json:
    """A pod as a runtime describes it; group: its cgroup."""
    return {
        "id": f"sandbox-{uid}",
        "name": uid,
        "uid": uid,
        "namespace": "jobs",
        "annotations": annotations,
        "linux": {"cgroupParent": f"/{group}"},
    }


def container(uid: str, name: str, **cpu: Any) -> Json:
    """A container of a pod, as the kubelet asks for one that it knows no resources of."""
    resources: Json = {"cpu": {"shares": {"value": "2"}, "period": {"value": "100000"}, **cpu}}
    return {
        "id": name,
        "podSandboxId": f"sandbox-{uid}",
        "name": "main",
        "state": "CONTAINER_RUNNING",
        "linux": {"resources": resources},
    }
