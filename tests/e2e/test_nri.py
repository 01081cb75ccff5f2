"""Settings before a container starts, with the runtime's own side of NRI as the peer."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from koord.api.qos import KubeQoS
from koordlet.cli.koordletctl import main
from koordlet.host.paths import HostPaths
from koordlet.runtimehooks import wire
from tests.support.node.nvml_stub import add_pci_device
from tests.support.programs import NRI_RUNTIME, NRI_RUNTIME_08, Program
from tests.support.real_runtime.nri_node import (
    ADJUSTED,
    BATCH,
    BATCH_PODS,
    GIB,
    Node,
    in_force,
    many_pods,
)
from tests.support.real_runtime.nri_runtime import NriRuntime, container, sandbox

NIC, FUNCTION = "0000:09:00.0", "0000:09:00.2"  # of an RDMA card


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
    """And with what the kubelet asked for in the journal, before the runtime has the response."""
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

    found = wire.PodSandbox.decode(bytes.fromhex(of_pod["reply"]))
    assert (found.uid, found.annotations[BATCH]) == ("be1", json.dumps(BATCH_PODS))
    resources = wire.Container.decode(bytes.fromhex(of_container["reply"])).linux.resources
    assert resources == wire.LinuxResources(
        cpu=wire.LinuxCPU(shares=2, quota=-1, period=100_000, cpus="0-3")
    )


async def test_synchronize_of_150_pods_updates_what_runs(node: Node) -> None:
    """In two seconds, which is all that a runtime waits; an update later has the container's id."""
    sandboxes, containers = many_pods(node, 150)
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
    sandboxes, containers = many_pods(node, 150)
    async with contextlib.AsyncExitStack() as runtimes:
        runtime = await runtimes.enter_async_context(node.runtime())
        await runtime.start(sandboxes, containers)
        async with node.daemon() as daemon:
            for milliseconds in (0, 5, 50):
                await node.log.next("nri.connected")
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
    """Killed after its response: the container is made, and `koordletctl restore` knows it."""
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


async def test_the_first_process_has_its_oom_score_before_its_program_runs(node: Node) -> None:
    """In the file when the runtime may go on; restored when the agent ends.

    The agent keeps the runtime no longer than half a second, which a busy disk may take: then the
    score comes a moment later, and the next pod is tried.
    """
    node.add_pod("be1", "be1-main")
    scores = [add_process(node, f"pod{number}", 4711 + number) for number in range(6)]
    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon("--feature-gates=OOMScoreAdj=true"):
            await synchronized(runtime)
            await in_force(node, 1)
            for number in range(6):
                uid = f"pod{number}"
                pod = node.sandbox(uid)
                pod["annotations"]["koordinator.sh/oom-score-adj"] = "777"
                begun = await runtime.ask("begin", pod=pod, container=container(uid, f"{uid}-main"))

                assert not begun["error"]
                sys.stderr.write(f"answered after {begun['micros'] / 1000:.1f} ms\n")
                if scores[number].read_text().strip() == "777":
                    break
            else:
                pytest.fail("no pod had its score when the runtime went on")
    assert {score.read_text().strip() for score in scores} == {"1000"}


def add_process(node: Node, uid: str, pid: int) -> Path:
    """The first process of a pod's container, not yet running its program; its score's file."""
    layout = node.host.layout
    group = layout.container_dir(
        layout.pod_dir(KubeQoS.BEST_EFFORT, uid), f"containerd://{uid}-main"
    )
    node.host.group(group).set_processes(pid)
    score = node.host.paths.proc / str(pid) / "oom_score_adj"
    score.parent.mkdir()
    (score.parent / "stat").write_text(f"{pid} (init) S {'0 ' * 18}99 0\n")
    score.write_text("1000\n")
    return score


async def test_a_container_gets_the_devices_of_its_pod(node: Node) -> None:
    """A share of a GPU with HAMi's limits, and one RDMA function; who asks for none has none."""
    node.add_pod("be1", "be1-old")
    hami, verbs = add_devices(node.host.paths)
    xpus = node.directory / "run" / "xpu-device-infos"
    xpus.mkdir(parents=True, mode=0o750)
    topology = {"nodeID": 0, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"}
    gpu = {"vendor": "v", "model": "m", "uuid": "G0", "minor": 3, "topology": topology}
    resources = {"gpu-core": "100", "gpu-memory": "64Gi", "gpu-memory-ratio": "100"}
    (xpus / "gpus.json").write_text(
        json.dumps([gpu | {"resources": resources, "status": {"healthy": True}}])
    )
    half = {"gpu-core": "50", "gpu-memory": "32Gi", "gpu-memory-ratio": "50"}
    allocated = {
        "gpu": [{"minor": 3, "resources": {f"koordinator.sh/{k}": v for k, v in half.items()}}],
        "rdma": [{"minor": 0, "id": NIC, "extension": {"vfs": [{"busID": FUNCTION}]}}],
    }
    pod, thief = node.sandbox("be2"), node.sandbox("be3")
    given = {"scheduling.koordinator.sh/device-allocated": json.dumps(allocated)}
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    asked = {f"koordinator.sh/{k}": v for k, v in (half | {"rdma": "1"}).items()}
    node.add_pod("be2", annotations=given, labels=labels, requests=asked)
    node.add_pod("be3", annotations=given, labels=labels)
    for each in (pod, thief):
        each["annotations"] |= given
        each["labels"] = labels | {"koordinator.sh/qosClass": "BE"}
    names = "Accelerators GPUEnvInject RDMADevices RDMADeviceInject HamiCoreVGPUMonitor".split()
    gates = ",".join(f"{name}=true" for name in ("BatchResource", *names))

    async with node.runtime() as runtime:
        await runtime.start()
        async with node.daemon(f"--feature-gates={gates}"):
            await synchronized(runtime)
            async with asyncio.timeout(30):
                while True:  # until the devices are known, which the log says
                    made = await runtime.ask(
                        "create", pod=pod, container=container("be2", "be2-main")
                    )
                    adjust = made["reply"]["adjust"]
                    if adjust.get("env") and adjust["linux"].get("devices"):
                        break
            stolen = await runtime.ask("create", pod=thief, container=container("be3", "be3-main"))

    assert "env" not in stolen["reply"]["adjust"]
    assert "devices" not in stolen["reply"]["adjust"]["linux"]
    assert adjust["env"] == [
        {"key": "NVIDIA_VISIBLE_DEVICES", "value": "3"},
        {"key": "CUDA_DEVICE_MEMORY_LIMIT", "value": str(32 * GIB)},
        {"key": "CUDA_DEVICE_SM_LIMIT", "value": "50"},
        {"key": "LD_PRELOAD", "value": "/usr/local/vgpu/libvgpu.so"},
        {"key": "CUDA_DEVICE_MEMORY_SHARED_CACHE", "value": "/usr/local/vgpu/be2_main.cache"},
    ]
    assert [
        (each["source"], each["destination"], each["options"]) for each in adjust["mounts"]
    ] == [
        ("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", ["rbind"]),
        ("/tmp/vgpulock", "/tmp/vgpulock", ["rbind"]),
        ("/usr/local/vgpu/containers/be2_main", "/usr/local/vgpu", ["rbind"]),
    ]
    assert [
        (each["path"], each["major"], each["minor"]) for each in adjust["linux"]["devices"]
    ] == [
        ("/dev/infiniband/rdma_cm", "10", "58"),
        (f"/dev/infiniband/{verbs}", "231", "193"),
    ]
    assert adjust["linux"]["resources"] == ADJUSTED
    assert (hami / "containers/be2_main").stat().st_mode & 0o777 == 0o777


def add_devices(paths: HostPaths) -> tuple[Path, str]:
    """HAMi-core on the node, and an RDMA card with a virtual function; its device file."""
    hami = paths.root / "usr/local/vgpu"
    for directory in (hami, paths.root / "tmp/vgpulock"):
        directory.mkdir(parents=True)
    (hami / "libvgpu.so").touch()
    card = add_pci_device(paths.sys, NIC, root="pci0000:00")
    function = add_pci_device(paths.sys, FUNCTION, root="pci0000:00")
    (card / "class").write_text("0x020700\n")
    (card / "virtfn0").symlink_to(function)
    (function / "physfn").symlink_to(card)
    interface = card / "infiniband/mlx5_0"
    interface.mkdir(parents=True)
    (interface / "device").symlink_to(card)
    (paths.sys / "class/infiniband").mkdir(parents=True)
    (paths.sys / "class/infiniband/mlx5_0").symlink_to(interface)
    verbs = function / "infiniband_verbs/uverbs1"
    for directory, numbers in ((verbs, "231:193"), (paths.sys / "class/misc/rdma_cm", "10:58")):
        directory.mkdir(parents=True)
        (directory / "dev").write_text(f"{numbers}\n")
    return hami, verbs.name
