"""A node with best-effort pods whose runtime has NRI: the daemon's process and the Go peer."""

import asyncio
import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from koord.api.qos import KubeQoS
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import LAID_OUT, host_flags
from tests.support.real_runtime.nri_runtime import NriRuntime, container, nri_runtime, sandbox

GIB = 2**30
BATCH = "node.koordinator.sh/extended-resource-spec"
BATCH_PODS = {
    "containers": {
        "main": {
            "requests": {"kubernetes.io/batch-cpu": "1000"},
            "limits": {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"},
        }
    }
}
ADJUSTED = {
    "memory": {"limit": {"value": str(2 * GIB)}},
    "cpu": {"shares": {"value": "1024"}, "quota": {"value": "200000"}},
}


class Log:
    """The log of a daemon's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: Counter[str] = Counter()

    async def next(self, event: str) -> None:
        """Return when it has one more line of this event than at the last call."""
        self._seen[event] += 1
        async with asyncio.timeout(60):
            while self.path.read_text().count(f'"{event}"') < self._seen[event]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)


class Node:
    """A host on disk with best-effort pods, the daemon's process and the runtime."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory, self.program = directory, program
        self.host = FakeHost(directory / "host")
        self.socket = self.host.paths.var_run / "nri" / "nri.sock"
        self.listed: dict[str, dict] = {}  # by UID
        self.log = Log(directory / "log")

    def add_pod(
        self,
        uid: str,
        *containers: str,
        annotations: dict[str, str] | None = None,
        labels: dict[str, str] | None = None,
        requests: dict[str, str] | None = None,
    ) -> str:
        """A best-effort pod with batch resources; return its cgroup."""
        batch = {BATCH: json.dumps(BATCH_PODS)} | (annotations or {})
        pod = self.listed[uid] = pod_of_kubelet(uid, f"{uid}-main", batch)
        pod["metadata"]["labels"] |= labels or {}
        pod["spec"]["containers"][0]["resources"] = {"requests": requests or {}}
        pods = {"kind": "PodList", "items": list(self.listed.values())}
        (self.directory / "pods.json").write_text(json.dumps(pods))
        return self.host.add_pod(uid, KubeQoS.BEST_EFFORT, containers).group.path

    def sandbox(self, uid: str) -> dict:
        group = self.host.layout.pod_dir(KubeQoS.BEST_EFFORT, uid)
        return sandbox(uid, group, **{BATCH: json.dumps(BATCH_PODS)})

    def runtime(self) -> contextlib.AbstractAsyncContextManager[NriRuntime]:
        return nri_runtime(self.program, self.socket)

    @contextlib.asynccontextmanager
    async def daemon(self, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        with self.log.path.open("ab") as log:
            daemon = await asyncio.create_subprocess_exec(
                sys.executable,
                LAID_OUT,
                "--standalone",
                "--node-name=n1",
                "--addr=127.0.0.1:0",
                f"--run-dir={self.directory / 'run'}",
                f"--pods-file={self.directory / 'pods.json'}",
                "--feature-gates=BatchResource=true,BECPUSuppress=false,CPUBurst=false",
                "--runtime-hooks-nri-backoff-duration=100ms",
                *host_flags(self.host.paths),
                *args,
                stderr=log,
            )
        try:
            yield daemon
        finally:
            if daemon.returncode is None:
                daemon.terminate()
            ended = await asyncio.wait_for(daemon.wait(), 60)
            sys.stderr.write(self.log.path.read_text())
        assert ended in (0, -signal.SIGKILL)

    def journal(self) -> str:
        return (self.directory / "run" / "journal").read_text()


def pod_of_kubelet(uid: str, container: str, annotations: dict[str, str]) -> dict:
    """A best-effort pod with one container that runs, as the kubelet lists it."""
    status = {"name": "main", "containerID": f"containerd://{container}", "state": {"running": {}}}
    return {
        "metadata": {
            "name": uid,
            "namespace": "jobs",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "qosClass": "BestEffort",
            "containerStatuses": [status],
        },
    }


def many_pods(node: Node, pods: int) -> tuple[list[dict], list[dict]]:
    """So many pods that run already, as the runtime has them: with what the kubelet asked for."""
    for number in range(pods):
        node.add_pod(f"p{number}", f"p{number}-main")
    uids = [f"p{number}" for number in range(pods)]
    return [node.sandbox(uid) for uid in uids], [container(uid, f"{uid}-main") for uid in uids]


async def in_force(node: Node, containers: int) -> None:
    """Return when so many containers have what the plugin claims."""
    tops = node.host.paths.cgroup / "cpu" / node.host.layout.qos_dir(KubeQoS.BEST_EFFORT)
    async with asyncio.timeout(60):
        while sum(_has_shares(each) for each in tops.glob("*/*-main")) < containers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _has_shares(group: Path) -> bool:
    return (group / "cpu.shares").read_text().strip() == "1024"
