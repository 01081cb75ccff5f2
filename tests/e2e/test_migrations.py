"""Migrations by the real process on a real API server."""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.api.podmigrationjob import API_VERSION, PLURAL
from koord.api.reservation import PLURAL as RESERVATION_PLURAL
from koord.kube.client import ApiClient, Resource
from koord.kube.errors import NotFound
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.rights import Right, of_server

JOBS, RESERVATIONS = Resource(API_VERSION, PLURAL), Resource(API_VERSION, RESERVATION_PLURAL)
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
Json = dict[str, Any]

CONFIG = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
healthzBindAddress: 127.0.0.1:0
metricsBindAddress: 127.0.0.1:0
leaderElection:
  leaderElect: true
  leaseDuration: 3s
  renewDeadline: 2s
  retryPeriod: 500ms
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: koordlet-system
deschedulingInterval: 10s
profiles:
- name: koord-descheduler
  pluginConfig:
  - name: MigrationController
    args: {objectLimiters: {workload: {duration: 0s}}, maxMigratingPerNode: 9}
"""


class Cluster:
    """Three nodes, and a workload of four pods on two of them."""

    def __init__(self, recorder: Recorder, objects: ClusterObjects, client: ApiClient) -> None:
        self.server, self.client = recorder, client
        self.namespace = f"ns-{uuid.uuid4().hex[:8]}"
        self._objects = objects
        self._owner: Json = {}

    async def set_up(self) -> None:
        """Have all that."""
        room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        for name in ("n1", "n2", "n3"):
            await self._objects.add_node(name, {**READY, "capacity": room})
        self._owner = await self._objects.add_replica_set("web", 4, namespace=self.namespace)
        for number in range(4):
            await self.add_pod(f"web-{number}", "n1" if number < 2 else "n3")

    async def add_pod(self, name: str, node: str) -> Json:
        """A ready pod of the workload."""
        spec = {"nodeName": node, "schedulerName": "koord-scheduler"}
        return await self._objects.add_pod(
            name, spec, {**READY, "phase": "Running"}, namespace=self.namespace,
            labels={"app": "web"}, ownerReferences=[self._owner],
        )  # fmt: skip

    async def pods(self) -> list[str]:
        return await self._objects.names(namespace=self.namespace)

    async def ask(self, pod: str, mode: str) -> str:
        """Make a job as a user does; return its name."""
        name = str(uuid.uuid4())
        spec = {"mode": mode, "ttl": "2m", "podRef": {"namespace": self.namespace, "name": pod}}
        body = {"apiVersion": API_VERSION, "kind": "PodMigrationJob", "metadata": {"name": name}}
        await self.client.create(JOBS.collection(), {**body, "spec": spec})
        return name

    async def job(self, name: str) -> Json:
        return await self.client.get(JOBS.object(name))

    async def until(self, name: str, holds: Callable[[Json], bool], seconds: float = 40) -> Json:
        """Return a job once its status is so."""
        async with asyncio.timeout(seconds):
            while True:
                job = await self.job(name)
                if holds(job.get("status") or {}):
                    return job
                await asyncio.sleep(0.1)

    async def until_no_reservation(self, name: str, seconds: float = 20) -> None:
        """Return once there is no such Reservation."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(NotFound):
                while True:
                    await self.client.get(RESERVATIONS.object(name))
                    await asyncio.sleep(0.1)

    async def place(self, name: str, node: str) -> None:
        """Give a Reservation a node, as the scheduler does."""
        done = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
        await self._status(name, {"phase": "Available", "nodeName": node, "conditions": [done]})

    async def bind(self, name: str, pod: Json) -> None:
        """Let a pod have a Reservation."""
        owner = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
        await self._status(name, {"phase": "Succeeded", "currentOwners": [owner]})

    async def _status(self, name: str, status: Json) -> None:
        path = RESERVATIONS.object(name, subresource="status")
        await self.client.merge_patch(path, {"status": status})

    def evictions(self) -> list[str]:
        """The pods whose evictions were asked for."""
        asked = self.server.asked("create", "/api/v1/namespaces")
        return [one.path.split("/")[-2] for one in asked if one.path.endswith("/eviction")]


@pytest.fixture
async def cluster(
    recorder: Recorder, objects: ClusterObjects, client: ApiClient, own_plane: ControlPlane
) -> Cluster:
    cluster = Cluster(recorder, objects, client)
    await cluster.set_up()
    return cluster


@pytest.fixture
async def token(accounts: Accounts) -> str:
    return await accounts.descheduler()


@contextlib.asynccontextmanager
async def descheduler(
    directory: Path, url: str, token: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The process; its output is in directory/log, printed at the end."""
    _lay_out(directory, url, token)
    command = "from koord_descheduler.cli.descheduler import main; raise SystemExit(main())"
    with (directory / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", command,
            f"--config={directory / 'config.yaml'}", "--v=4", "--secure-port=0",
            stdout=log, stderr=log, env={**os.environ, "KUBECONFIG": str(directory / "kubeconfig")},
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)
        sys.stderr.write((directory / "log").read_text())


def _lay_out(directory: Path, url: str, token: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "kubeconfig").write_text(kubeconfig(url, token))
    (directory / "config.yaml").write_text(CONFIG)


def is_over(status: Json) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


async def test_a_job_that_evicts_directly(tmp_path: Path, cluster: Cluster, token: str) -> None:
    """The pod is evicted once, and the job says so."""
    name = await cluster.ask("web-0", "EvictDirectly")
    async with descheduler(tmp_path, cluster.server.url, token):
        job = await cluster.until(name, is_over)

    assert (job["status"]["phase"], job["status"]["status"]) == ("Succeeded", "Complete")
    assert cluster.evictions() == ["web-0"]
    assert await cluster.pods() == ["web-1", "web-2", "web-3"]
    wanted = {of_server(entry) for entry in cluster.server.requests}
    assert Right("create", "", "pods/eviction", "web-0") in wanted


async def test_a_job_that_reserves_first_and_a_process_that_is_killed(
    tmp_path: Path, cluster: Cluster, token: str
) -> None:
    """kill -9 while the Reservation waits, and after the eviction; each time another goes on."""
    name = await cluster.ask("web-1", "ReservationFirst")
    async with descheduler(tmp_path / "a", cluster.server.url, token) as first:
        job = await cluster.until(name, lambda status: status.get("status") == "ReservationCreated")
        first.kill()
    room = job["metadata"]["uid"]
    reservation = await cluster.client.get(RESERVATIONS.object(room))
    assert reservation["metadata"]["ownerReferences"][0]["uid"] == room
    assert job["spec"]["reservationOptions"]["reservationRef"]["name"] == room

    await cluster.place(room, "n2")
    async with descheduler(tmp_path / "b", cluster.server.url, token) as second:
        await cluster.until(
            name, lambda status: status.get("reason") == "WaitForPodBindReservation"
        )
        second.kill()
    assert cluster.evictions() == ["web-1"]

    await cluster.bind(room, await cluster.add_pod("web-9", "n2"))
    async with descheduler(tmp_path / "c", cluster.server.url, token):
        job = await cluster.until(name, is_over)

    assert (job["status"]["phase"], job["status"]["nodeName"]) == ("Succeeded", "n2")
    assert job["status"]["podRef"]["name"] == "web-9"
    assert {one["type"]: one["status"] for one in job["status"]["conditions"]} == {
        "ReservationCreated": "True", "ReservationScheduled": "True", "Eviction": "True",
        "PodBoundReservation": "True", "ReservationBound": "True", "BoundPodReady": "True",
    }  # fmt: skip
    assert cluster.evictions() == ["web-1"]


async def test_a_deleted_job_takes_its_reservation_along(
    tmp_path: Path, cluster: Cluster, token: str
) -> None:
    """There is no garbage collector here: the descheduler does it."""
    name = await cluster.ask("web-2", "ReservationFirst")
    async with descheduler(tmp_path, cluster.server.url, token):
        job = await cluster.until(name, lambda status: status.get("status") == "ReservationCreated")
        await cluster.client.delete(JOBS.object(name))
        await cluster.until_no_reservation(job["metadata"]["uid"])

    assert cluster.evictions() == []
