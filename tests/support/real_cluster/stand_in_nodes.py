"""Nodes without a kubelet: what is on them is said to run, and nothing runs.

`python -m tests.support.real_cluster.stand_in_nodes KUBECONFIG NUMBER` keeps so many nodes
ready, with their Leases, makes the pods on them Running and Ready, and ends the pods that are
deleted. They are called hollow-1, ….
They have no operating system, so they do not take pods that ask for one, as our daemons' do.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
from typing import Any

from koord.kube.client import LEASES, NODES, PODS, ApiClient
from koord.kube.errors import (
    AlreadyExists,
    ApiError,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
)
from koord.kube.informer import SharedInformer
from koord.kube.kubeconfig import load, split_list
from koord.kube.reflector import Change, Watched
from koord.kube.transport import Limits, Object, Transport
from koord.util.clock import SystemClock
from koord.util.stop import Stop

PREFIX = "hollow-"
ROOM = {"cpu": "4", "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi"}
RENEWAL = 15.0  # seconds; the controllers wait for 50
_NAMESPACE = "kube-node-lease"
_AT_ONCE = 20  # requests
_PASSING = (ServerError, TooManyRequests)  # while etcd or the API server starts, for example


def node(number: int) -> Object:
    """A node as its kubelet registers it."""
    name = f"{PREFIX}{number}"
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_status(number: int, now: str) -> Object:
    """As its kubelet reports it."""
    healthy = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "capacity": ROOM,
        "allocatable": ROOM,
        "addresses": [
            {"type": "InternalIP", "address": f"10.78.{number // 250}.{number % 250 + 1}"},
            {"type": "Hostname", "address": f"{PREFIX}{number}"},
        ],
        "conditions": [
            {"type": kind, "status": status, "reason": "StandIn", **times}
            for kind, status in {**healthy, "Ready": "True"}.items()
        ],
    }


def running(pod: Object, address: str, now: str) -> Object:
    """The status of a pod whose containers have all started."""
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "containerID": f"stand-in://{pod['metadata']['uid']}/{each['name']}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for each in pod["spec"]["containers"]
    ]
    kinds = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds
        ],
        "containerStatuses": containers,
    }


class StandIn:
    """All of these nodes' kubelets."""

    def __init__(self, client: ApiClient, number: int) -> None:
        self._client = client
        self._number = number
        self._permits = asyncio.Semaphore(_AT_ONCE)
        self._work: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self._addresses = 0

    async def run(self, stop: Stop) -> None:
        """Keep them until stop is set."""
        clock = SystemClock()
        pods = Watched(name="pods", path=PODS.collection(), read=_itself, on_change=self._take)
        await self._all(self._register(number) for number in self._numbers())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(SharedInformer(self._client, pods, clock).run(stop))
            for _ in range(_AT_ONCE):
                tasks.create_task(self._serve())
            while not await stop.sleep(RENEWAL):
                await self._all(self._renew(number) for number in self._numbers())
                await self._all([self._report_lost()])

    def _numbers(self) -> range:
        return range(1, self._number + 1)

    async def _all(self, calls: "Any") -> None:
        """Do all, some at a time; one that fails is tried again in its next turn."""

        async def one(call: Coroutine[Any, Any, None]) -> None:
            async with self._permits:
                try:
                    await call
                except KubeError as err:
                    print(f"stand-in: {err}", file=sys.stderr, flush=True)

        await asyncio.gather(*(one(call) for call in calls))

    async def _register(self, number: int) -> None:
        name = f"{PREFIX}{number}"
        with contextlib.suppress(AlreadyExists):
            await self._client.create(NODES.collection(), node(number))
        await self._report(name, number)
        await self._renew(number)

    async def _report(self, name: str, number: int) -> None:
        status = {"status": node_status(number, _now())}
        await self._client.merge_patch(NODES.object(name, subresource="status"), status)

    async def _report_lost(self) -> None:
        """Report nodes anew that were taken for lost, while no API server could take a Lease."""
        listed = await self._client.get(NODES.collection())
        for found in listed["items"]:
            name = found["metadata"]["name"]
            if name.startswith(PREFIX) and not _is_ready(found):
                await self._report(name, int(name.removeprefix(PREFIX)))

    async def _renew(self, number: int) -> None:
        name = f"{PREFIX}{number}"
        path = LEASES.object(name, namespace=_NAMESPACE)
        renewed = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="microseconds")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
        spec["renewTime"] = renewed.replace("+00:00", "Z")
        try:
            await self._client.merge_patch(path, {"spec": spec})
        except NotFound:
            lease = {"metadata": {"name": name}, "spec": spec}
            await self._client.create(LEASES.collection(_NAMESPACE), lease)

    def _take(self, change: Change[Object]) -> None:
        pod = change.new
        if pod is None or not str(pod["spec"].get("nodeName", "")).startswith(PREFIX):
            return
        runs = pod["status"].get("phase") == "Running" and _is_ready(pod)  # not on a lost node
        if "deletionTimestamp" in pod["metadata"] or not (runs or _has_ended(pod)):
            self._work.put_nowait((change.key, pod))

    async def _serve(self) -> None:
        while True:
            key, pod = await self._work.get()
            namespace, _, name = key.partition("/")
            try:
                await self._do(pod, namespace, name)
            except NotFound:
                continue  # another client was quicker
            except KubeError as err:
                if isinstance(err, ApiError) and not isinstance(err, _PASSING):
                    print(f"stand-in: {key}: {err}", file=sys.stderr, flush=True)
                    continue
                await asyncio.sleep(1)
                self._work.put_nowait((key, pod))

    async def _do(self, pod: Object, namespace: str, name: str) -> None:
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            path = PODS.object(name, namespace=namespace)
            await self._client.delete(path, uid=uid, options={"gracePeriodSeconds": 0})
            return
        self._addresses += 1
        address = f"10.99.{self._addresses // 250 % 250}.{self._addresses % 250 + 1}"
        body = {"metadata": {"uid": uid}, "status": running(pod, address, _now())}
        path = PODS.object(name, namespace=namespace, subresource="status")
        await self._client.merge_patch(path, body)


def _is_ready(found: Object) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _has_ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _itself(item: Object) -> Object:
    return item


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.asynccontextmanager
async def client_of(kubeconfig: str) -> AsyncIterator[ApiClient]:
    """A client without a rate of its own."""
    clock = SystemClock()
    config = load(split_list(kubeconfig), must_exist=True)
    client = ApiClient(Transport(config, clock, limits=Limits(qps=0)), clock)
    try:
        yield client
    finally:
        await client.close()


async def main(kubeconfig: str, number: str) -> None:
    """Run until killed."""
    async with client_of(kubeconfig) as client:
        await StandIn(client, int(number)).run(Stop(SystemClock()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
