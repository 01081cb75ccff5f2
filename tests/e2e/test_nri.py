"""Settings before a container starts, with the runtime's own side of NRI as the peer."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from nrinode import ADJUSTED, BATCH, BATCH_PODS, Node, crowd, in_force
from nriruntime import NriRuntime, container, sandbox
from programs import NRI_RUNTIME, NRI_RUNTIME_08, Program

from koord.api.qos import KubeQoS
from koordlet.cli.koordletctl import main
from koordlet.runtimehooks.wire import messages


@pytest.fixture(scope="module", params=[NRI_RUNTIME, NRI_RUNTIME_08], ids=["0.12", "0.8"])
def program(request: pytest.FixtureRequest) -> Path:
    found: Program = request.param
    return found.build()


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


async def line(node: Node, event: str) -> None:
    """Return when the daemon's log has one more line of this event than at the last call."""
    node.lines += 1
    log, wanted = node.directory / "log", f'"{event}"'
    async with asyncio.timeout(30):
        while log.read_text().count(wanted) < node.lines:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
