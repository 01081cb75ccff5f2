"""A real containerd with runc on this machine, below cgroups of its own, and a kubelet's client.

containerd is in a cgroup namespace whose root is a Tree's, as a node in a container has it, and in
a mount namespace of its own; its pods are in the node's network.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.support.node.cgroup_trees import VERSION, Tree, make_group
from tests.support.programs import CONTAINERD, CONTAINERD_SHIM, CRI_CLIENT, PAUSE

TIMEOUT = 90.0  # seconds for one response
IMAGE = "koordlet.test/pause:1"
NODE_NAMESPACE = 2  # NamespaceMode_NODE
_UNCONFINED = {"seccomp": {"profile_type": 1}}
_OPTIONS = {"rw", "ro", "relatime", "nosuid", "nodev", "noexec", "noatime", "nsdelegate"}
_numbers = itertools.count()

Json = dict[str, Any]

# Arguments: the directory that is /run/containerd, then mounts as "type options directory".
_HOLD = """
set -e
mkdir -p /run/containerd
mount --bind "$1" /run/containerd
shift
for each; do
  set -- $each
  umount -l "$3"
  mount -t "$1" -o "$2" cgroup "$3"
done
echo ready
exec sleep infinity
"""
# Arguments: the files cgroup.procs of groups to join, --, the command.
JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'


def unusable() -> str:
    """Why it cannot be run here; empty when it can."""
    if VERSION != 1:
        return "needs cgroup v1: on v2 the process would have to leave its root for controllers"
    return "" if shutil.which("runc") else "needs runc"


@dataclasses.dataclass(frozen=True, slots=True)
class CgroupMount:
    """One of the machine's cgroup hierarchies."""

    directory: Path
    kind: str
    options: str  # that choose it


class ContainerdNode:
    """A node with containerd, in the directory; it ends with the context."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        self.directory = directory
        self.tree = tree
        self.socket = directory / "containerd.sock"
        self.var_run = directory / "varrun"
        self.logs = directory / "logs"  # of containers, <pod>-<container>.log
        self._mounts = list(cgroup_mounts())
        self._groups = [each.directory / tree.base.name for each in self._mounts]  # of our root
        self._holder: subprocess.Popen[str] | None = None
        self._containerd: asyncio.subprocess.Process | None = None
        self._client: asyncio.subprocess.Process | None = None
        self._sandboxes: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ContainerdNode"]:
        for program in (CONTAINERD, CONTAINERD_SHIM, CRI_CLIENT, PAUSE):
            program.build()
        for group in self._groups:
            make_group(group)
        try:
            self.tree.make("kubepods/besteffort")  # by the kubelet
            self._hold()
            self._write_config()
            await self.start()
            try:
                image = self.directory / "image.tar"
                write_pause_image(image)
                await self._say(op="Import", path=str(image))
                yield self
            finally:
                await self._end()
        finally:
            self._remove()

    async def start(self) -> None:
        """Start containerd; it can be killed before."""
        with (self.directory / "containerd.log").open("ab") as log:
            self._containerd = await asyncio.create_subprocess_exec(
                *self._inside(CONTAINERD.binary, f"--config={self.directory / 'config.toml'}"),
                stdout=log, stderr=log,
                env={**os.environ, "PATH": f"{CONTAINERD.binary.parent}:{os.environ['PATH']}"},
            )  # fmt: skip
        async with asyncio.timeout(TIMEOUT):
            while (await self._said(op="Status", request={}))["error"]:
                assert self._containerd.returncode is None, "containerd has ended"
                await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """As by kill -9; what runs goes on."""
        assert self._containerd is not None
        self._containerd.kill()
        await self._containerd.wait()

    async def ask(self, op: str, **request: Any) -> Json:
        """Have it do something, a method of the CRI's RuntimeService; return its response."""
        return await self._say(op=op, request=request)

    async def run_pod(self, uid: str, **annotations: str) -> tuple[str, Json]:
        """A best-effort pod's sandbox: its id, and what it was made from."""
        config = {
            "metadata": {"name": uid, "uid": uid, "namespace": "jobs", "attempt": 0},
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": annotations,
            "log_directory": str(self.logs),
            "linux": {
                "cgroup_parent": f"/{self.group(uid)}",
                "security_context": {
                    "namespace_options": {"network": NODE_NAMESPACE},
                    **_UNCONFINED,
                },
            },
        }
        self.tree.make(self.group(uid))  # by the kubelet, too
        found = await self.ask("RunPodSandbox", config=config)
        self._sandboxes.append(found["pod_sandbox_id"])
        return found["pod_sandbox_id"], config

    async def create(self, sandbox: str, config: Json, name: str = "main") -> str:
        """A container with what a kubelet says that knows no resources of it; return its id."""
        container = {
            "metadata": {"name": name, "attempt": next(_numbers)},
            "image": {"image": IMAGE},
            "log_path": f"{config['metadata']['uid']}-{name}.log",
            "linux": {
                "resources": {"cpu_shares": 2, "oom_score_adj": 1000},
                "security_context": _UNCONFINED,
            },
        }
        found = await self.ask(
            "CreateContainer",
            pod_sandbox_id=sandbox, config=container, sandbox_config=config,
        )  # fmt: skip
        return str(found["container_id"])

    async def run(self, sandbox: str, config: Json, name: str = "main") -> str:
        """Create a container and start it."""
        made = await self.create(sandbox, config, name)
        await self.ask("StartContainer", container_id=made)
        return made

    def group(self, uid: str, container: str = "") -> str:
        """The cgroup of a pod or a container of it."""
        return f"kubepods/besteffort/pod{uid}" + (f"/{container}" if container else "")

    def value(self, controller: str, group: str, file: str) -> str:
        """What the kernel has."""
        return (self.tree.paths.cgroup / controller / group / file).read_text().strip()

    def _hold(self) -> None:
        """Make the namespaces."""
        (self.directory / "run").mkdir(parents=True)
        mounts = [f"{each.kind} {each.options} {each.directory}" for each in self._mounts]
        inside = ["unshare", "--mount", "--cgroup", "--propagation", "private"]
        self._holder = subprocess.Popen(
            [*self._joined(), *inside, "sh", "-c", _HOLD, "sh", self.directory / "run", *mounts],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "no namespace can be made here"

    def _inside(self, *command: str | Path) -> list[str | Path]:
        """A command in the namespaces and at the root of the cgroups."""
        assert self._holder is not None
        enter = ["nsenter", "-t", str(self._holder.pid), "--mount", "--cgroup"]
        return [*self._joined(), *enter, *command]

    def _joined(self) -> list[str]:
        """The beginning of a command that runs at our root."""
        procs = (f"{group}/cgroup.procs" for group in self._groups)
        return ["sh", "-c", JOIN, "sh", *procs, "--"]

    def _write_config(self) -> None:
        (self.directory / "config.toml").write_text(f"""
version = 3
root = "{self.directory / "root"}"
state = "{self.directory / "run"}"
disabled_plugins = ["io.containerd.differ.v1.erofs", "io.containerd.snapshotter.v1.erofs"]
[grpc]
address = "{self.socket}"
[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{self.var_run}/nri/nri.sock"
plugin_path = "{self.directory}/plugins"
plugin_config_path = "{self.directory}/plugins"
plugin_registration_timeout = "5s"
plugin_request_timeout = "2s"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
enable_selinux = false
disable_apparmor = true
restrict_oom_score_adj = true
""")
        (self.var_run / "nri").mkdir(parents=True)
        self.logs.mkdir()

    async def _say(self, **command: Any) -> Json:
        """Have the client do something; return its response."""
        found = await self._said(**command)
        assert not found["error"], f"{command['op']}: {found['error']}"
        reply: Json = found["reply"] or {}
        return reply

    async def _said(self, **command: Any) -> Json:
        """All that the client says to a command."""
        if self._client is None:
            self._client = await asyncio.create_subprocess_exec(
                CRI_CLIENT.binary, f"-socket={self.socket}",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 20,
            )  # fmt: skip
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(json.dumps(command).encode() + b"\n")
        found: Json = json.loads(await asyncio.wait_for(self._client.stdout.readline(), TIMEOUT))
        return found

    async def _end(self) -> None:
        """Remove all pods, and end."""
        for sandbox in self._sandboxes:
            await self.ask("StopPodSandbox", pod_sandbox_id=sandbox)
            await self.ask("RemovePodSandbox", pod_sandbox_id=sandbox)
        for process in (self._client, self._containerd):
            if process is not None and process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), TIMEOUT)
        sys.stderr.write((self.directory / "containerd.log").read_text())

    def _processes(self) -> list[int]:
        """All that is left at our root and below it."""
        pids: list[int] = []
        for procs in self.tree.base.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):  # its group has just been removed
                pids += map(int, procs.read_text().split())
        return pids

    def _remove(self) -> None:
        until = time.monotonic() + TIMEOUT
        while (left := self._processes()) and time.monotonic() < until:
            for pid in left:  # of a test that failed, shims and containers, too
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        if self._holder is not None:
            with self._holder:
                self._holder.kill()
        for group in set(self._groups) - set(self.tree.hierarchies):  # which the tree removes
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)


def write_pause_image(path: Path) -> None:
    """A tar as `docker save` makes it, with a program that waits for its end."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(PAUSE.binary, "pause", filter=_as_root)
    diff = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [diff]},
    }
    described = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("layer.tar", layer.getvalue()),
            ("config.json", json.dumps(image).encode()),
            ("manifest.json", json.dumps(described).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def cgroup_mounts() -> Iterator[CgroupMount]:
    """The machine's cgroup hierarchies."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, directory, kind, options, *_ = line.split()
        if kind not in ("cgroup", "cgroup2") or not directory.startswith("/sys/fs/cgroup/"):
            continue
        chosen = [each for each in options.split(",") if each not in _OPTIONS]
        named = [each for each in chosen if each.startswith("name=")]
        controllers = [each for each in chosen if "=" not in each and each != "xattr"]
        text = ",".join(["none", *named] if named else controllers)
        yield CgroupMount(Path(directory), kind, text or "rw")


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode = 0o755
    return entry
