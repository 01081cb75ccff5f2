"""The agent beside a real containerd 2 with runc: containers of best-effort pods on real cgroups.

What is made up: the kubelet, of which the tests are the client of the CRI and the list of pods.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.node.cgroup_trees import Tree, tree_of, unusable
from tests.support.real_runtime.containerd_node import ContainerdNode
from tests.support.real_runtime.containerd_node import unusable as no_containerd
from tests.support.real_runtime.nri_node import BATCH, BATCH_PODS, GIB, Log, pod_of_kubelet

SCORE = "koordinator.sh/oom-score-adj"
ANNOTATIONS = {BATCH: json.dumps(BATCH_PODS), SCORE: "777"}
ASKED = ("2", "-1", "9223372036854771712")  # shares, quota, memory limit that the kubelet asks for
RULED = ("1024", "200000", str(2 * GIB))
TIMEOUT = 60.0


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    if reason := unusable() or no_containerd():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with tree_of(tmp_path / "cgroup") as tree:
        yield tree


@pytest.fixture
async def node(tmp_path: Path, tree: Tree) -> AsyncIterator[ContainerdNode]:
    async with ContainerdNode(tmp_path / "node", tree).running() as node:
        yield node


class Agent:
    """The agent's process, its log, and the pods that its kubelet knows."""

    def __init__(self, node: ContainerdNode) -> None:
        self.node = node
        self.log = Log(node.directory / "agent.log")
        self.run_dir = node.directory / "agent"
        self.pods = node.directory / "pods.json"
        self.process: asyncio.subprocess.Process | None = None
        self.know({})

    def know(self, containers: dict[str, str]) -> None:
        """Have the kubelet run these: the container of each pod."""
        pods = [pod_of_kubelet(uid, made, ANNOTATIONS) for uid, made in containers.items()]
        written = self.pods.with_suffix(".new")
        written.write_text(json.dumps({"kind": "PodList", "items": pods}))
        written.rename(self.pods)

    @contextlib.asynccontextmanager
    async def running(self, *args: str) -> AsyncIterator[None]:
        """From when the runtime has taken it in; it ends as at a SIGTERM, unless it was killed."""
        with self.log.path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "koordlet.cli.koordlet",
                "--standalone", "--node-name=n1", "--addr=127.0.0.1:0",
                f"--run-dir={self.run_dir}",
                f"--pods-file={self.pods}",
                f"--cgroup-root-dir={self.node.tree.paths.cgroup}",
                f"--var-run-root-dir={self.node.var_run}",
                "--feature-gates=BatchResource=true,OOMScoreAdj=true,BECPUSuppress=false,"
                "CPUBurst=false",
                "--runtime-hooks-nri-backoff-duration=100ms",
                *args,
                stderr=log, env={**os.environ, "agent_mode": "hostMode"},
            )  # fmt: skip
        try:
            await self.log.next("nri.synchronized")
            yield
        finally:
            if self.process.returncode is None:
                self.process.terminate()
            ended = await asyncio.wait_for(self.process.wait(), TIMEOUT)
            sys.stderr.write(self.log.path.read_text())
        assert ended in (0, -signal.SIGKILL)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not holds():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


@pytest.fixture
def agent(node: ContainerdNode) -> Agent:
    return Agent(node)


def values(node: ContainerdNode, uid: str, container: str) -> Sequence[str]:
    group = node.group(uid, container)
    return (
        node.value("cpu", group, "cpu.shares"),
        node.value("cpu", group, "cpu.cfs_quota_us"),
        node.value("memory", group, "memory.limit_in_bytes"),
    )


def score(node: ContainerdNode, uid: str, container: str) -> str:
    """The OOM score of its first process."""
    [pid] = node.value("memory", node.group(uid, container), "cgroup.procs").split()
    return Path(f"/proc/{pid}/oom_score_adj").read_text().strip()


async def at_its_begin(node: ContainerdNode, uid: str) -> str:
    """What the program in the container found when it began: its score.

    The runtime answers that it is started before the program has written its line.
    """
    log = node.logs / f"{uid}-main.log"
    line = re.compile(r"oom_score_adj (-?\d+)\s")
    await until(lambda: log.exists() and line.search(log.read_text()) is not None)
    found = line.search(log.read_text())
    assert found is not None
    return found[1]


async def test_a_container_is_made_with_the_values_of_the_rules(
    node: ContainerdNode, agent: Agent
) -> None:
    """Before its program runs; with what the kubelet asked for in the journal, and back at the end.

    The agent keeps the runtime no longer than half a second for the score, which a busy machine may
    take: then the score comes a moment later, and the next pod is tried.
    """
    made: dict[str, str] = {}
    found: dict[str, Any] = {}
    async with agent.running():
        for number in range(6):
            uid = f"pod-{number}"
            sandbox, config = await node.run_pod(uid, **ANNOTATIONS)
            created = await node.create(sandbox, config)
            await node.ask("StartContainer", container_id=created)
            made[uid], found[uid] = created, values(node, uid, created)
            agent.know(made)
            if await at_its_begin(node, uid) == "777":
                break
        else:
            pytest.fail("no program had its score when it began")
        assert set(found.values()) == {RULED}
        journal = (agent.run_dir / "journal").read_text()
        assert all(created in journal for created in made.values())
        await until(lambda: {score(node, uid, each) for uid, each in made.items()} == {"777"})
    assert {values(node, uid, created) for uid, created in made.items()} == {ASKED}
    assert {score(node, uid, created) for uid, created in made.items()} == {"1000"}


async def test_what_runs_already_is_updated_and_stays_so(
    node: ContainerdNode, agent: Agent
) -> None:
    """Also when the kubelet updates the container, as it does with what it knows of."""
    made = await many_pods(node, 5)
    agent.know(made)
    assert {values(node, uid, created) for uid, created in made.items()} == {ASKED}
    async with agent.running():
        await until(lambda: {values(node, uid, each) for uid, each in made.items()} == {RULED})
        uid, created = next(iter(made.items()))

        await node.ask("UpdateContainerResources", container_id=created, linux={"cpu_shares": 2})

        assert values(node, uid, created) == RULED
    assert {values(node, uid, created) for uid, created in made.items()} == {ASKED}


async def test_containerd_may_be_killed_and_started_again(
    node: ContainerdNode, agent: Agent
) -> None:
    """What runs keeps its values, and the next container is made with them."""
    made = await many_pods(node, 2)
    agent.know(made)
    async with agent.running():
        await until(lambda: {values(node, uid, each) for uid, each in made.items()} == {RULED})
        await node.kill()
        await node.start()
        await agent.log.next("nri.synchronized")
        assert {values(node, uid, created) for uid, created in made.items()} == {RULED}

        sandbox, config = await node.run_pod("late", **ANNOTATIONS)
        created = await node.run(sandbox, config)

        assert values(node, "late", created) == RULED


async def test_without_an_agent_containers_start_as_the_kubelet_says(
    node: ContainerdNode, agent: Agent
) -> None:
    """Killed, it keeps nothing from starting; started again, it updates what it missed."""
    async with agent.running():
        await agent.kill()
        sandbox, config = await node.run_pod("missed", **ANNOTATIONS)
        created = await node.run(sandbox, config)
        assert values(node, "missed", created) == ASKED
    agent.know({"missed": created})
    async with agent.running():
        await until(lambda: values(node, "missed", created) == RULED)
    assert values(node, "missed", created) == ASKED


async def test_in_dry_run_the_kubelet_has_its_way(node: ContainerdNode, agent: Agent) -> None:
    async with agent.running("--dry-run"):
        sandbox, config = await node.run_pod("be", **ANNOTATIONS)
        created = await node.run(sandbox, config)
        assert values(node, "be", created) == ASKED
        assert await at_its_begin(node, "be") == "1000"


async def many_pods(node: ContainerdNode, pods: int) -> dict[str, str]:
    """So many pods that run; the container of each."""
    made = {}
    for number in range(pods):
        sandbox, config = await node.run_pod(f"old-{number}", **ANNOTATIONS)
        made[f"old-{number}"] = await node.run(sandbox, config)
    return made
