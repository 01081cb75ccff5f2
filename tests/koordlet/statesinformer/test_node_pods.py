"""Pods from the kubelet, else from the API server: real HTTPS and inotify, simulated time."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koord.api.node import Node
from koord.kube.client import PODS, ApiClient
from koord.kube.credentials import ApiConfig
from koord.kube.transport import Limits, Traffic, Transport
from koord.util.filewatch import DirectoryWatch
from koord.util.health import HealthStatus, PartHealth
from koord.util.stop import Stop
from koordlet.host.cgroups.tree import CgroupTree
from koordlet.kubelet import KubeletClient
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.pod_lists import (
    CONFIRM_DELAY,
    UNAVAILABLE_TIMEOUT,
    KubeletPods,
    KubePods,
    NodePods,
    PodListGuard,
)
from koordlet.statesinformer.pod_source import SETTLE_DELAY, PodChangeNotifiers, PodSource
from tests.support.kube.apiserver import ApiServer, Handler
from tests.support.kube.certificates import Authority
from tests.support.kube.faults import answer, begin, drop, endless, hang, refuse
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.kubelet import Kubelet, api_config, make_kubelet, rbac
from tests.support.kube.loopback_network import network_is_quiet

ALL_PODS = PODS.collection()
INTERVAL = 10.0
BURSTABLE = "kubepods/burstable"
Start = Callable[..., Awaitable["Pods"]]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def pod(uid: str, *containers: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": f"web-{uid}", "uid": uid, **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": name} for name in containers]},
        "status": {
            "phase": phase,
            "qosClass": "Burstable",
            "containerStatuses": [
                {"name": name, "containerID": f"containerd://{name}"} for name in containers
            ],
        },
    }


class Pods:
    """The listing and the source of pods, on a kubelet, an API server and a cgroup tree."""

    def __init__(self, base: Path, kubelet: Kubelet, server: ApiServer, ca: Path) -> None:
        self.kubelet, self.server, self.base = kubelet, server, base
        self.clock = SimulatedClock()
        self.informer = StatesInformer(self.clock)
        self.node: Node | None = kubelet.node
        api = ApiConfig(server=server.url, source="the test")
        limits = Limits(connect=1e6, headers=1e6, body=1e6, qps=0)
        transport = Transport(api, self.clock, limits=limits)
        self._client = ApiClient(transport, self.clock, draw=lambda: 0.0)
        self.answered = 0  # requests to the kubelet that are over
        self._kubelet_client = KubeletClient(
            api_config(ca), lambda: self.node, self.clock, observe=self._observe
        )
        alarms = PodChangeNotifiers()
        guard = PodListGuard(alarms.rescan)
        of_kubelet = KubeletPods(
            self._kubelet_client, guard, self.clock, interval=INTERVAL, ask=alarms.repoll
        )
        self.listing = NodePods(
            of_kubelet,
            lambda: KubePods(self._client, "n1", guard, self.clock),
            guard,
            lambda: self.node,
            self.clock,
        )
        self.events = DirectoryWatch(alarms.rescan.set)
        tree = CgroupTree(base, self.clock)
        self.source = PodSource(
            tree, self.informer, self.clock, listing=self.listing, alarms=alarms, events=self.events
        )

    def _observe(self, _: Traffic) -> None:
        self.answered += 1

    async def run(self, stop: Stop) -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        await asyncio.gather(self.source.run(stop), self.listing.run(stop))
        await self._kubelet_client.close()
        await self._client.close()

    async def until(self, condition: Callable[[], object], *, step: float = 0.25) -> float:
        """Let time pass until something holds; return how many seconds that took."""
        begun = self.clock.monotonic()
        for _ in range(1000):
            if condition():
                return self.clock.monotonic() - begun
            await network_is_quiet()
            await self.clock.advance(step)
        raise AssertionError(f"not so after {1000 * step:g} simulated seconds")

    async def pass_time(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        await self.until(lambda: self.clock.monotonic() >= end, step=min(seconds, 1.0))

    @property
    def uids(self) -> set[str]:
        return {meta.uid for meta in self.informer.pods() if meta.pod.namespace != "unknown"}

    @property
    def is_from_kubelet(self) -> bool:
        return self.listing.health().detail["source"] == "kubelet"

    @property
    def problem(self) -> str:
        found = self.listing.health()
        assert (found.status is HealthStatus.DEGRADED) == bool(found.reason)
        return found.reason

    @property
    def asked(self) -> int:
        """How often the kubelet was."""
        return len(self.kubelet.requests)

    def make(self, name: str, uid: str) -> None:
        """Make a cgroup in that of a pod."""
        (self.base / BURSTABLE / f"pod{uid}" / name).mkdir(parents=True)


@pytest.fixture
async def kubelet(authority: Authority) -> AsyncIterator[Kubelet]:
    kubelet = make_kubelet(authority)
    kubelet.pods = [pod("u1", "c1")]
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    server.objects.create(ALL_PODS, pod("u1", "c1"))
    server.objects.create(ALL_PODS, pod("u2"))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    for name in ("u1/c1", "u1/sandbox"):
        (directory / BURSTABLE / f"pod{name}").mkdir(parents=True)
    return directory


@pytest.fixture
async def start(
    base: Path, kubelet: Kubelet, server: ApiServer, authority: Authority
) -> AsyncIterator[Start]:
    """Begin, perhaps with a CA that has not signed the kubelet's certificate."""
    async with AsyncExitStack() as stack:

        async def start(ca: Path = authority.certificate) -> Pods:
            pods = Pods(base, kubelet, server, ca)
            stop = Stop(pods.clock)
            stack.push_async_callback(asyncio.wait_for, asyncio.create_task(pods.run(stop)), 10)
            stack.callback(stop.set)
            return pods

        yield start


@pytest.fixture
async def pods(start: Start) -> Pods:
    """With the kubelet's first list."""
    pods = await start()
    await pods.until(lambda: pods.uids)
    return pods


class TestFromTheKubelet:
    """As long as it answers."""

    async def test_pods_and_their_cgroups(self, pods: Pods, server: ApiServer) -> None:
        """Without a single request to the API server."""
        [meta] = pods.informer.pods()
        assert (meta.pod.name, meta.cgroup) == ("web-u1", f"{BURSTABLE}/podu1")
        assert [container.name for container in meta.containers] == ["c1"]
        assert pods.listing.health() == PartHealth(HealthStatus.OK, "", {"source": "kubelet"})
        assert server.requests == []
        assert {rbac(entry) for entry in pods.kubelet.requests} == {("get", "nodes/pods")}

    async def test_static_and_finished_pods(self, pods: Pods) -> None:
        """A static pod's uid is the hash of its manifest; finished pods stay listed."""
        pods.make("c2", "hash")
        annotations = {"kubernetes.io/config.hash": "hash", "kubernetes.io/config.source": "file"}
        pods.kubelet.pods += [
            pod("hash", "c2", annotations=annotations), pod("u3", phase="Succeeded"),
        ]  # fmt: skip
        await pods.until(lambda: pods.uids == {"u1", "hash", "u3"})

        static, finished = pods.informer.pod("hash"), pods.informer.pod("u3")
        assert static.containers[0].cgroup == f"{BURSTABLE}/podhash/c2"
        assert finished.pod.finished

    async def test_a_new_pod_is_known_within_a_second(self, pods: Pods) -> None:
        """Its cgroup wakes us, and we ask the kubelet."""
        await pods.pass_time(5)
        asked, begun = pods.answered, pods.clock.monotonic()
        pods.kubelet.pods.append(pod("u2"))
        pods.make("sandbox", "u2")
        await pods.clock.advance(SETTLE_DELAY)
        await pods.clock.until(lambda: pods.answered > asked)
        await pods.clock.advance(SETTLE_DELAY)
        await pods.clock.until(lambda: pods.uids == {"u1", "u2"})
        assert pods.clock.monotonic() - begun < 1
        assert pods.source.health().detail == {"new_cgroups_found_by": "inotify"}

    async def test_the_same_without_inotify(self, start: Start, monkeypatch) -> None:
        """The cgroups are looked at once a second; the log says why, once."""
        monkeypatch.setattr(DirectoryWatch, "open", no_instance)
        with capture_logs() as logs:
            pods = await start()
            await pods.until(lambda: pods.uids)
            pods.kubelet.pods.append(pod("u2"))
            pods.make("sandbox", "u2")
            assert await pods.until(lambda: pods.uids == {"u1", "u2"}) < INTERVAL / 2
        events = [entry["event"] for entry in logs]
        assert events.count("cgroup_events.missing") == 1
        assert pods.source.health() == PartHealth(
            HealthStatus.OK, "", {"new_cgroups_found_by": "no luck"}
        )

    async def test_a_vanished_pod_goes_with_its_cgroup(self, pods: Pods) -> None:
        """Not only with the next turn."""
        await pods.pass_time(5)
        pods.make("c2", "u2")
        pods.kubelet.pods.append(pod("u2", "c2"))
        await pods.until(lambda: pods.uids == {"u1", "u2"})
        await pods.pass_time(5)

        pods.kubelet.pods.pop()
        shutil.rmtree(pods.base / BURSTABLE / "podu2")
        assert await pods.until(lambda: pods.uids == {"u1"}) < INTERVAL / 2

    async def test_the_kubelet_lags_behind_its_cgroups(self, pods: Pods) -> None:
        """A new container's id is listed a second or two later; that is not missed."""
        await pods.pass_time(5)
        asked = pods.asked
        pods.make("c2", "u1")
        await pods.until(lambda: pods.asked > asked)
        pods.kubelet.pods[0] = pod("u1", "c1", "c2")
        took = await pods.until(lambda: len(pods.informer.pod("u1").containers) == 2)
        assert took < INTERVAL / 2

    async def test_the_kubelet_is_not_pestered(self, pods: Pods) -> None:
        """However many cgroups come and go; and in quiet times only once an interval."""
        await pods.pass_time(15)
        asked = pods.asked
        await pods.pass_time(60)
        assert pods.asked - asked in (5, 6, 7)

        asked = pods.asked
        for turn in range(100):
            pods.make(f"c{turn}", "busy")
            await pods.pass_time(0.2)
        assert pods.asked - asked <= 2 * 20 + 2

    async def test_the_same_list_is_no_news(self, pods: Pods) -> None:
        """In whatever order the kubelet has it: no callback runs."""
        pods.kubelet.pods.append(pod("u2"))
        await pods.until(lambda: len(pods.uids) == 2)
        before, asked = pods.informer.pods(), pods.asked
        pods.kubelet.pods.reverse()
        await pods.until(lambda: pods.asked >= asked + 2)
        await pods.pass_time(1)
        assert pods.informer.pods() is before

    async def test_an_empty_list_for_a_moment_drops_no_pod(self, pods: Pods) -> None:
        """It is asked for again soon, and only then believed."""
        listed, pods.kubelet.pods = pods.kubelet.pods, []
        await pods.until(lambda: pods.problem)
        assert "all pods vanished at once" in pods.problem
        pods.kubelet.pods = listed
        await pods.until(lambda: not pods.problem)
        await pods.pass_time(1)
        assert pods.uids == {"u1"}

    async def test_a_kubelet_that_has_just_started_drops_no_pod(self, pods: Pods) -> None:
        """It lists static pods first, whose files are at hand, and the others a little later."""
        annotations = {"kubernetes.io/config.hash": "hash", "kubernetes.io/config.source": "file"}
        static = pod("hash", annotations=annotations)
        pods.kubelet.pods.append(static)
        await pods.until(lambda: pods.uids == {"u1", "hash"})
        listed, pods.kubelet.pods = pods.kubelet.pods, [static]
        await pods.until(lambda: "all pods but static ones vanished" in pods.problem)
        pods.kubelet.pods = listed
        await pods.until(lambda: not pods.problem)
        assert pods.uids == {"u1", "hash"}

        pods.kubelet.pods = [static]
        assert await pods.until(lambda: pods.uids == {"hash"}) <= INTERVAL + CONFIRM_DELAY + 2
        pods.kubelet.pods = []
        await pods.until(lambda: "all pods vanished" in pods.problem)

    async def test_an_empty_list_is_believed_when_seen_twice(self, pods: Pods) -> None:
        """The last pod may have gone."""
        pods.kubelet.pods = []
        await pods.until(lambda: pods.problem)
        assert await pods.until(lambda: not pods.informer.pods()) <= CONFIRM_DELAY + 2
        assert pods.problem == ""

    async def test_a_class_that_is_not_known_costs_no_pod(self, pods: Pods) -> None:
        """It is computed; one log line says so, and health."""
        odd = pod("u2") | {"status": {"phase": "Running", "qosClass": "Silver"}}
        pods.kubelet.pods.append(odd)
        with capture_logs() as logs:
            await pods.until(lambda: pods.uids == {"u1", "u2"})
            await pods.until(lambda: pods.source.health().status is HealthStatus.DEGRADED)
            asked = pods.answered
            await pods.until(lambda: pods.answered > asked)
        assert "1 parts of pods left out, the first: pod " in pods.source.health().reason
        assert [entry["event"] for entry in logs] == ["source.degraded"]

    async def test_of_pods_with_one_uid_always_the_same_stays(self, pods: Pods) -> None:
        """In whatever order the kubelet has them; and the problem is reported, once."""
        metadata = {"namespace": "shop", "uid": "u1"}
        for name in ("web-u1-too", "web-u1-three"):
            pods.kubelet.pods.append(pod("u1") | {"metadata": {**metadata, "name": name}})
        with capture_logs() as logs:
            await pods.until(lambda: pods.source.health().status is HealthStatus.DEGRADED)
            reason = pods.source.health().reason
            assert "2 pods left out, the first because of pod shop/web-u1-three" in reason
            before = pods.informer.pods()
            for _ in range(3):
                pods.kubelet.pods.append(pods.kubelet.pods.pop(0))
                asked = pods.answered
                await pods.until(lambda asked=asked: pods.answered > asked)
            await pods.pass_time(1)
        assert pods.informer.pods() is before
        assert pods.informer.pod("u1").pod.name == "web-u1"
        assert [entry["event"] for entry in logs] == ["source.degraded"]

    @pytest.mark.parametrize(
        "fault",
        [refuse(500), refuse(429), answer(b"garbage"), answer(b'{"items": [{"meta'), hang, drop,
         begin(b'{"items": [', then_cut=True), endless(b" " * 65536)],
        ids=["500", "429", "garbage", "half a body", "hang", "drop", "cut", "endless"],
    )  # fmt: skip
    async def test_trouble_for_a_moment(self, pods: Pods, fault: Handler) -> None:
        """The last list stays, health says why, and the API server is left in peace."""
        pods.kubelet.script(fault, fault)
        with capture_logs() as logs:
            await pods.until(lambda: pods.problem)
            assert pods.problem.startswith("the last list stays: GET /pods:")
            assert pods.uids == {"u1"}
            await pods.until(lambda: not pods.problem)
        assert pods.is_from_kubelet
        assert [entry["event"] for entry in logs] == ["kubelet.failed", "kubelet.recovered"]
        assert pods.server.requests == []


class TestFromTheServer:
    """When the kubelet cannot be asked."""

    @pytest.mark.parametrize("status", [401, 403, 404])
    async def test_a_kubelet_that_refuses(self, pods: Pods, status: int) -> None:
        """Is not asked again for a while; log and health say why and what to do."""
        refusal = refuse(status)
        pods.kubelet.script(*[refusal] * 1000)
        with capture_logs() as logs:
            await pods.until(lambda: not pods.is_from_kubelet)
            await pods.until(lambda: pods.uids == {"u1", "u2"})
            asked = pods.asked
            await pods.pass_time(60)
        assert pods.asked - asked <= 3 * (2 if status == 401 else 1)
        assert f"from the API server: GET /pods: refused with {status}" in pods.problem
        assert "nodes/pods" in pods.problem or status == 404
        events = [entry["event"] for entry in logs if entry["event"].startswith("pods")]
        assert events == ["pods.source_api_server"]

    async def test_a_certificate_of_another_ca(self, start: Start, tmp_path: Path) -> None:
        """The kubelet gets no token, and we get our pods."""
        pods = await start(Authority(tmp_path, "another CA").certificate)
        await pods.until(lambda: pods.uids == {"u1", "u2"})
        assert "--kubelet-ca-file" in pods.problem
        assert pods.asked == 0

    async def test_a_node_without_address(self, start: Start) -> None:
        """Nobody says where the kubelet is."""
        pods = await start()
        pods.node = Node("n1")
        await pods.until(lambda: pods.uids == {"u1", "u2"})
        assert "found no address" in pods.problem

    async def test_a_node_not_known_yet_is_waited_for(self, start: Start) -> None:
        """The API server is away then anyway."""
        pods = await start()
        pods.node = None
        await pods.pass_time(20)
        assert pods.server.requests == []
        assert [meta.pod.namespace for meta in pods.informer.pods()] == ["unknown"]

        pods.node = pods.kubelet.node
        await pods.until(lambda: pods.uids == {"u1"})
        assert pods.is_from_kubelet

    async def test_a_kubelet_that_was_never_there(self, start: Start, kubelet: Kubelet) -> None:
        """There is no last list to stay with, so the API server is asked at once."""
        await kubelet.stop()
        pods = await start()
        assert await pods.until(lambda: pods.uids == {"u1", "u2"}) < 5

    async def test_a_kubelet_gone_and_back(self, pods: Pods) -> None:
        """Its restart costs nothing; after half a minute the API server takes over, until it is
        back."""
        await pods.kubelet.stop()
        await pods.until(lambda: pods.problem)
        took = await pods.until(lambda: not pods.is_from_kubelet)
        assert UNAVAILABLE_TIMEOUT - 5 <= took <= UNAVAILABLE_TIMEOUT + 2 * INTERVAL
        await pods.until(lambda: pods.uids == {"u1", "u2"})

        await pods.kubelet.start()
        await pods.until(lambda: pods.is_from_kubelet)
        await pods.until(lambda: pods.uids == {"u1"})
        assert pods.problem == ""
        await pods.until(lambda: pods.server.watching == 0)

    async def test_another_source_does_not_drop_all_pods_either(self, pods: Pods) -> None:
        """What the kubelet listed stays until the API server has said twice that it is gone."""
        for key in ("shop/web-u1", "shop/web-u2"):
            pods.server.objects.delete(ALL_PODS, key)
        pods.kubelet.script(*[refuse(403)] * 1000)
        await pods.until(lambda: "vanished" in pods.problem)
        assert pods.uids == {"u1"}
        await pods.until(lambda: not pods.informer.pods())


def no_instance(watch: DirectoryWatch) -> None:
    watch.problem = "no luck"
