"""Settings before a container starts, with the runtime's own side of NRI as the peer."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from daemonflags import LAID_OUT, host_flags
from nriruntime import NriRuntime, container, nri_runtime, sandbox
from programs import NRI_RUNTIME, NRI_RUNTIME_08, Program

from koord.api.qos import KubeQoS
from koordlet.cli.koordletctl import main
from koordlet.plugin.testing import FakeHost
from koordlet.runtimehooks.wire import messages

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


@pytest.fixture(scope="module", params=[NRI_RUNTIME, NRI_RUNTIME_08], ids=["0.12", "0.8"])
def program(request: pytest.FixtureRequest) -> Path:
    found: Program = request.param
    return found.build()


class Node:
    """A host on disk with best-effort pods, the daemon's process and the runtime."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.directory, self.program = directory, program
        self.host = FakeHost(directory / "host")
        self.socket = self.host.paths.var_run / "nri" / "nri.sock"
        self.uids: list[str] = []
        self.lines = 0  # of the log that were waited for

    def add_pod(self, uid: str, *containers: str) -> str:
        """A best-effort pod with batch resources; return its cgroup."""
        self.uids.append(uid)
        pods = [_pod(uid) for uid in self.uids]
        (self.directory / "pods.json").write_text(json.dumps({"kind": "PodList", "items": pods}))
        return self.host.add_pod(uid, KubeQoS.BEST_EFFORT, containers).group.path

    def sandbox(self, uid: str) -> dict:
        group = self.host.layout.pod_dir(KubeQoS.BEST_EFFORT, uid)
        return sandbox(uid, group, **{BATCH: json.dumps(BATCH_PODS)})

    def runtime(self) -> contextlib.AbstractAsyncContextManager[NriRuntime]:
        return nri_runtime(self.program, self.socket)

    @contextlib.asynccontextmanager
    async def daemon(self, *args: str) -> AsyncIterator[asyncio.subprocess.Process]:
        with (self.directory / "log").open("ab") as log:
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
            sys.stderr.write((self.directory / "log").read_text())
        assert ended in (0, -signal.SIGKILL)

    def journal(self) -> str:
        return (self.directory / "run" / "journal").read_text()


def _pod(uid: str) -> dict:
    status = {"name": "main", "containerID": f"containerd://{uid}-main", "state": {"running": {}}}
    return {
        "metadata": {
            "name": uid,
            "namespace": "jobs",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": {BATCH: json.dumps(BATCH_PODS)},
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "qosClass": "BestEffort",
            "containerStatuses": [status],
        },
    }


@pytest.fixture
def node(tmp_path: Path, program: Path) -> Node:
    return Node(tmp_path, program)


async def synchronized(runtime: NriRuntime) -> list[dict]:
    found = await runtime.next("synchronized")
    assert not found["error"]
    return found["reply"].get("update", [])


async def test_a_container_is_made_with_the_values_of_the_rules(node: Node) -> None:
    """And with what the kubelet asked for in the journal, before the runtime has the answer."""
    node.add_pod("be1", "be1-old")
    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon():
            await synchronized(runtime)
            assert not (await runtime.ask("run", pod=node.sandbox("be1")))["error"]

            made = await runtime.ask(
                "create", pod=node.sandbox("be1"), container=container("be1", "be1-main")
            )

            assert not made["error"]
            assert made["reply"]["adjust"]["linux"]["resources"] == ADJUSTED
            [shares] = [
                line
                for line in node.journal().splitlines()
                if "be1-main" in line and "cpu_shares" in line
            ]
            assert '"2","1024","1024"' in shares
            assert not (await runtime.ask("remove", pod=node.sandbox("be1")))["error"]


async def test_the_runtime_encodes_as_we_do(node: Node) -> None:
    """Go's own bytes of pods, containers and resources, with many more fields than we know."""
    pod = node.sandbox("be1") | {"ips": ["10.0.0.1"], "pid": 7, "runtimeHandler": "runc"}
    made = container("be1", "c1", quota={"value": "-1"}, cpus="0-3", mems="0")
    made |= {"args": ["sh"], "env": ["A=B"], "mounts": [{"destination": "/x", "options": ["ro"]}]}
    made["linux"] |= {"oomScoreAdj": {"value": 1000}, "devices": [{"path": "/dev/x", "major": "1"}]}
    async with node.runtime() as runtime:
        of_pod = await runtime.ask("encode", message="pod", pod=pod)
        of_container = await runtime.ask("encode", message="container", container=made)

    found = messages.PodSandbox.decode(bytes.fromhex(of_pod["reply"]))
    assert (found.uid, found.annotations[BATCH]) == ("be1", json.dumps(BATCH_PODS))
    resources = messages.Container.decode(bytes.fromhex(of_container["reply"])).linux.resources
    assert resources == messages.LinuxResources(
        cpu=messages.LinuxCPU(shares=2, quota=-1, period=100_000, cpus="0-3")
    )


async def test_synchronize_of_150_pods_updates_what_runs(node: Node) -> None:
    """In two seconds, which is all that a runtime waits; an update later has the container's id."""
    sandboxes, containers = crowd(node, 150)
    async with node.runtime() as runtime:
        await runtime.start(sandboxes, containers)
        async with node.daemon():
            updates = await synchronized(runtime)
            ids = {each["id"] for each in containers}
            assert updates  # all of them, unless this machine is too slow for that
            assert {update["containerId"] for update in updates} <= ids
            assert all(update["linux"]["resources"] == ADJUSTED for update in updates)
            await in_force(node, len(ids))

            updated = await runtime.ask(
                "update",
                pod=sandboxes[0],
                container=containers[0],
                resources={"cpu": {"shares": {"value": "2"}}},
            )

            [update] = updated["reply"]["update"]
            assert update["containerId"] == containers[0]["id"]
            assert update["linux"]["resources"]["cpu"]["shares"] == {"value": "1024"}


async def test_a_runtime_that_is_killed_amid_synchronize_is_served_again(node: Node) -> None:
    """With kill -9, several times; in the end all is as after a quiet start."""
    sandboxes, containers = crowd(node, 150)
    async with contextlib.AsyncExitStack() as runtimes:
        runtime = await runtimes.enter_async_context(node.runtime())
        await runtime.start(sandboxes, containers)
        async with node.daemon() as daemon:
            for milliseconds in (0, 5, 50):
                await line(node, "nri.connected")
                await asyncio.sleep(milliseconds / 1000)
                await runtime.end(at_once=True)
                node.socket.unlink(missing_ok=True)
                runtime = await runtimes.enter_async_context(node.runtime())
                await runtime.start(sandboxes, containers)
            await synchronized(runtime)
            made = await runtime.ask(
                "create", pod=sandboxes[0], container=container("p0", "another")
            )
            assert made["reply"]["adjust"]["linux"]["resources"] == ADJUSTED
            assert daemon.returncode is None


async def test_kill_9_leaves_what_restores_the_container(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after its answer: the container is made, and `koordletctl restore` knows it."""
    node.add_pod("be1", "be1-old")
    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon() as daemon:
            await synchronized(runtime)
            await runtime.ask(
                "create", pod=node.sandbox("be1"), container=container("be1", "be1-main")
            )
            daemon.kill()
            await daemon.wait()
    layout = node.host.layout
    group = node.host.group(
        layout.container_dir(layout.pod_dir(KubeQoS.BEST_EFFORT, "be1"), "containerd://be1-main")
    )
    for file, text in (("cpu.shares", "1024"), ("cpu.cfs_quota_us", "200000")):
        group.write(f"cpu/{file}", f"{text}\n")

    monkeypatch.setattr("koordlet.cli.ctl.restore.host_paths", lambda _: node.host.paths)
    roots = [f"--cgroup-root-dir={node.host.paths.cgroup}"]
    assert main(["restore", f"--run-dir={node.directory / 'run'}", *roots]) == 0
    assert [group.read(f"cpu/{file}") for file in ("cpu.shares", "cpu.cfs_quota_us")] == ["2", "-1"]


async def test_in_dry_run_the_adjustment_is_empty(node: Node) -> None:
    node.add_pod("be1", "be1-old")
    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon("--dry-run"):
            await synchronized(runtime)
            made = await runtime.ask(
                "create", pod=node.sandbox("be1"), container=container("be1", "be1-main")
            )

            assert not made["error"]
            assert not made["reply"]["adjust"]["linux"].get("resources", {}).get("cpu")


async def test_with_policy_fail_a_bad_annotation_keeps_the_container_from_being_made(
    node: Node,
) -> None:
    node.add_pod("be1", "be1-old")
    pod = sandbox("be2", node.host.layout.pod_dir(KubeQoS.BEST_EFFORT, "be2"), **{BATCH: "{"})
    pod["labels"] = {"koordinator.sh/qosClass": "BE"}
    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon("--runtime-hooks-plugin-failure-policy=Fail"):
            await synchronized(runtime)

            made = await runtime.ask("create", pod=pod, container=container("be2", "be2-main"))

            assert BATCH in made["error"]


def crowd(node: Node, pods: int) -> tuple[list[dict], list[dict]]:
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


async def line(node: Node, event: str) -> None:
    """Return when the daemon's log has one more line of this event than at the last call."""
    node.lines += 1
    log, wanted = node.directory / "log", f'"{event}"'
    async with asyncio.timeout(30):
        while log.read_text().count(wanted) < node.lines:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
