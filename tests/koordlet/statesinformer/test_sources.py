"""States without Kubernetes: files, this host, and the cgroup tree."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from koord.api.pod import parse_pod_list
from koord.util.errors import InvalidObject
from koord.util.health import HealthStatus, PartHealth
from koord.util.stop import Stop
from koordlet.host.cgroups.tree import CgroupTree, reference_hierarchy
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.statesinformer.file_sources import (
    SILENCE_TIMEOUT,
    HostNodeSource,
    ObjectFile,
    node_file,
    node_slo_file,
)
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.pod_source import PodSource


class Source(Protocol):
    name: str

    async def run(self, stop: Stop) -> None: ...

    def health(self) -> PartHealth: ...


Start = Callable[[Source], Awaitable[None]]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def informer(clock: SimulatedClock) -> StatesInformer:
    return StatesInformer(clock)


@pytest.fixture
async def start(clock: SimulatedClock) -> AsyncIterator[Start]:
    """Starts a source and waits for its first round."""
    stop = Stop(clock)
    tasks: list[asyncio.Task[None]] = []

    async def begin(source: Source) -> None:
        tasks.append(asyncio.create_task(source.run(stop)))
        await clock.until(lambda: clock.sleepers > 0)

    yield begin
    stop.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)


async def rounds(clock: SimulatedClock, number: int = 3, seconds: float = 1.0) -> None:
    """Let a source look again: one round to see a change, one to see that it stands still."""
    for _ in range(number):
        await clock.advance(seconds)
        await clock.until(lambda: clock.sleepers > 0)


def pod_object(uid: str, **status: object) -> dict[str, object]:
    return {
        "metadata": {"name": f"pod-{uid}", "namespace": "shop", "uid": uid},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": "Running", "qosClass": "Burstable", **status},
    }


def test_half_a_character_costs_one_pod_of_the_file(tmp_path: Path) -> None:
    """The file is in force; the pod is named."""
    spoilt = pod_object("u2")
    spoilt["metadata"]["labels"] = {"a": "\ud800"}  # type: ignore[index]
    path = tmp_path / "pods.json"
    path.write_text(pod_list(pod_object("u1"), spoilt))
    file = ObjectFile(path, parse_pod_list, half_characters=True)
    pods, errors = file.poll() or ((), ())

    assert [pod.uid for pod in pods] == ["u1"]
    assert [str(err) for err in errors] == [
        "pod shop/pod-u2.metadata.labels.a: wanted Unicode text, found \\ud800"
    ]


def pod_list(*items: object) -> str:
    return json.dumps({"kind": "PodList", "items": items})


def names(informer: StatesInformer) -> list[str]:
    return [meta.pod.name for meta in informer.pods()]


class TestObjectFile:
    """The file behind every source."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "object"

    @pytest.fixture
    def file(self, path: Path) -> ObjectFile[object]:
        return ObjectFile(path, lambda found: found, max_bytes=1000)

    def test_a_file_is_read_once_and_again_when_it_changed(self, path, file) -> None:
        """In between it costs a stat."""
        path.write_text('{"a": 1}')
        assert file.poll() == {"a": 1}
        assert file.poll() is None

        path.write_text("a: 22")
        assert file.poll() is None
        assert file.poll() == {"a": 22}

    def test_a_file_still_being_written_is_left_alone(self, path, file) -> None:
        """The first half of a YAML list is a list: half of the pods would vanish for a moment."""
        path.write_text("- a\n- b\n")
        file.poll()
        for size in range(1, 5):
            path.write_text("- c\n" * size)
            assert file.poll() is None
        assert file.poll() == ["c"] * 4

    @pytest.mark.parametrize(
        "text", ["", "{", '{"a": ', "\0\1\2", "a: [", "[" * 900, "x" * 1001, "- a\n---\n- b\n"]
    )
    def test_a_bad_file_is_named_and_a_good_one_taken_again(self, path, file, text) -> None:
        """Empty, half-written, binary, deep, large."""
        path.write_text(text)
        assert file.poll() is None
        assert str(path) in file.problem

        path.write_text('{"a": 1}')
        file.poll()
        assert file.poll() == {"a": 1}
        assert file.problem == ""

    def test_a_missing_file_is_named_until_it_is_there(self, path, file) -> None:
        """At first and later."""
        assert file.poll() is None
        assert "found nothing" in file.problem

        path.write_text("a: 1")
        assert file.poll() == {"a": 1}
        path.rename(path.with_suffix(".old"))
        assert file.poll() is None
        assert "found nothing" in file.problem

        path.with_suffix(".old").rename(path)
        file.poll()
        assert file.poll() == {"a": 1}
        assert file.problem == ""

    def test_a_huge_file_is_not_read(self, path, file) -> None:
        """A sparse file of 1 GiB takes no memory, neither once nor at each poll."""
        path.touch()
        os.truncate(path, 1 << 30)

        assert file.poll() is None
        assert "larger than 1000 bytes" in file.problem

    def test_a_fifo_does_not_hang(self, path, file) -> None:
        """A user may mount anything."""
        os.mkfifo(path)

        assert file.poll() is None
        assert file.problem

    def test_a_configmap_swap_is_seen(self, tmp_path: Path) -> None:
        """A ConfigMap volume swaps a link two levels up."""
        for version in (1, 2):
            (tmp_path / f"v{version}").mkdir()
            (tmp_path / f"v{version}" / "object").write_text(f"a: {version}")
        (tmp_path / "..data").symlink_to("v1")
        (tmp_path / "object").symlink_to("..data/object")
        file = ObjectFile(tmp_path / "object", lambda found: found)
        assert file.poll() == {"a": 1}

        (tmp_path / "..new").symlink_to("v2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        file.poll()
        assert file.poll() == {"a": 2}

    def test_an_object_of_another_shape_is_refused_with_its_path(self, path) -> None:
        """The message names file and field."""

        def parse(_: object) -> object:
            raise InvalidObject("node.metadata.name", wanted="a text", found=7)

        path.write_text("a: 1")
        file = ObjectFile(path, parse)

        assert file.poll() is None
        assert file.problem == f"{path}: node.metadata.name: wanted a text, found 7"


async def test_node_file(tmp_path: Path, clock, informer, start) -> None:
    """Published when it is there, again when it changes, kept when it breaks."""
    path = tmp_path / "node.yaml"
    source = node_file(path, informer, clock)
    assert source.health().status is HealthStatus.UNHEALTHY
    await start(source)
    assert informer.node() is None
    assert source.health().status is HealthStatus.DEGRADED

    path.write_text("metadata: {name: n1}\nstatus: {capacity: {cpu: 4}}\n")
    await rounds(clock)
    assert (informer.node().name, informer.node().capacity) == ("n1", {"cpu": "4"})
    assert source.health().status is HealthStatus.OK

    path.write_text("metadata: {name: [n2]}\n")
    await rounds(clock)
    assert informer.node().name == "n1"
    assert "node.metadata.name: wanted a text" in source.health().reason

    path.write_text('{"metadata": {"name": "n3"}}')
    await rounds(clock)
    assert informer.node().name == "n3"
    assert source.health().status is HealthStatus.OK


async def test_node_slo_file(tmp_path: Path, clock, informer, start) -> None:
    """The spec is kept as it came; the deletion of the file leaves it in force."""
    path = tmp_path / "slo.json"
    path.write_text('{"spec": {"hostApplications": [{"name": "nginx", "qos": "LS"}]}}')
    source = node_slo_file(path, informer, clock)
    await start(source)
    assert informer.node_slo().host_applications[0].name == "nginx"

    path.unlink()
    await rounds(clock)
    assert informer.node_slo() is not None
    assert source.health().status is HealthStatus.DEGRADED


async def test_a_bad_section_of_a_node_slo_file_keeps_its_last_good_value(
    tmp_path: Path, clock, informer, start
) -> None:
    """As one of the cluster does: the others change, health names file and field."""
    path = tmp_path / "slo.json"
    path.write_text(
        '{"spec": {"resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": 50}}}'
    )
    source = node_slo_file(path, informer, clock)
    await start(source)
    assert informer.node_slo().threshold.memory_evict_threshold_percent == 70

    bad = {
        "resourceUsedThresholdWithBE": {"cpuSuppressThresholdPercent": "half"},
        "cpuBurstStrategy": {"cpuBurstPercent": 300},
    }
    path.write_text(json.dumps({"spec": bad}))
    await rounds(clock)
    assert informer.node_slo().cpu_burst.cpu_burst_percent == 300
    assert informer.node_slo().threshold.cpu_suppress_threshold_percent == 50
    health = source.health()
    assert health.status is HealthStatus.DEGRADED
    assert f"{path}: nodeSLO.spec.resourceUsedThresholdWithBE.cpuSuppress" in health.reason

    path.write_text("{")
    await rounds(clock)
    assert informer.node_slo().cpu_burst.cpu_burst_percent == 300
    path.write_text('{"spec": {}}')
    await rounds(clock)
    assert informer.node_slo().threshold.cpu_suppress_threshold_percent == 65
    assert source.health().status is HealthStatus.OK


async def test_host_node(tmp_path: Path, clock, informer, start) -> None:
    """Name, CPUs and memory of this machine, in the words of a kubelet."""
    (tmp_path / "stat").write_text(
        "cpu  4 0 0 0 0 0 0 0 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\ncpu2 3 0 0 0 0 0 0 0 0 0\nintr 1 2 3\n"
    )
    source = HostNodeSource("n1", tmp_path, informer, clock)
    await start(source)
    node = informer.node()
    assert (node.name, node.labels["kubernetes.io/hostname"]) == ("n1", "n1")
    assert node.capacity == {"cpu": "2"}
    assert "meminfo" in source.health().reason

    (tmp_path / "meminfo").write_text(
        "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n"
    )
    await rounds(clock, 1, seconds=60.0)
    assert informer.node().allocatable == {"cpu": "2", "memory": "16384Ki"}
    assert source.health().status is HealthStatus.OK


class TestPodSource:
    """Pods from the tree, and from a file joined with the tree."""

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        directory = tmp_path / "cgroup"
        directory.mkdir()
        return directory

    async def test_pods_are_discovered_as_they_come_and_go(
        self, base, clock, informer, start
    ) -> None:
        """Within a round; an empty host is known to be empty."""
        await start(PodSource(CgroupTree(base, clock), informer, clock))
        assert informer.pods() == ()
        assert informer.health().reason == "not known yet: node"

        (base / "kubepods/besteffort/pod1/c1").mkdir(parents=True)
        seen_absent = clock.monotonic()
        await rounds(clock, 1)
        [meta] = informer.pods()
        assert (meta.uid, meta.containers[0].name, meta.absent_at) == ("1", "c1", seen_absent)

        (base / "kubepods/besteffort/pod1/c1").rmdir()
        (base / "kubepods/besteffort/pod1").rmdir()
        await rounds(clock, 1)
        assert informer.pods() == ()

    async def test_an_unchanged_host_publishes_nothing(self, base, clock, informer, start) -> None:
        """Callbacks and readers keep the very same snapshot."""
        (base / "kubepods/pod1/c1").mkdir(parents=True)
        await start(PodSource(CgroupTree(base, clock), informer, clock))
        before = informer.pods()
        await rounds(clock, 25)

        assert informer.pods() is before

    async def test_pods_of_a_file_are_joined_with_their_cgroups(
        self, tmp_path, base, clock, informer, start
    ) -> None:
        """Only its pods, finished ones too; a container appears with its cgroup."""
        path = tmp_path / "pods.json"
        statuses = [{"name": "app", "containerID": "containerd://1", "state": {"running": {}}}]
        path.write_text(
            pod_list(
                pod_object("1", containerStatuses=statuses), pod_object("2", phase="Succeeded")
            )
        )
        (base / "kubepods/burstable/pod1").mkdir(parents=True)
        (base / "kubepods/burstable/podnotlisted").mkdir()
        await start(PodSource(CgroupTree(base, clock), informer, clock, pods_file=path))
        assert names(informer) == ["pod-1", "pod-2"]
        assert informer.pod("1").containers == ()
        assert informer.pod("2").pod.finished

        (base / "kubepods/burstable/pod1/1").mkdir()
        await rounds(clock, 2)
        assert informer.pod("1").containers[0].cgroup == "kubepods/burstable/pod1/1"

    async def test_nothing_is_published_before_the_file_was_good_once(
        self, tmp_path, base, clock, informer, start
    ) -> None:
        """No pods known is not the same as no pods."""
        path = tmp_path / "pods.json"
        path.write_text('{"kind": "PodList", "ite')
        source = PodSource(CgroupTree(base, clock), informer, clock, pods_file=path)
        await start(source)
        assert informer.health().reason == "not known yet: node and pods"
        assert str(path) in source.health().reason

        path.write_text(pod_list())
        await rounds(clock)
        assert informer.health().reason == "not known yet: node"
        assert source.health().status is HealthStatus.OK

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('{"items": 5}', "podList"),
            ("kind: PodList\nitems: {a: 1}\n", "wanted a list"),
            ("5", "wanted an object"),
            ("", "0 documents"),
            ('{"items": [', "Expecting value"),
            ("{" + " " * (50 << 20) + "}", "larger than 16777216 bytes"),
        ],
        ids=["no list", "items", "number", "empty", "half-written", "50 MB"],
    )
    async def test_a_bad_file_keeps_the_last_good_pods(
        self, tmp_path, base, clock, informer, start, text, reason
    ) -> None:
        """And says why, as long as it lasts."""
        path = tmp_path / "pods.json"
        path.write_text(pod_list(pod_object("1")))
        source = PodSource(CgroupTree(base, clock), informer, clock, pods_file=path)
        await start(source)

        path.write_text(text)
        await rounds(clock)
        assert names(informer) == ["pod-1"]
        assert source.health().status is HealthStatus.DEGRADED
        assert reason in source.health().reason

        path.write_text(pod_list(pod_object("2")))
        await rounds(clock)
        assert names(informer) == ["pod-2"]
        assert source.health().status is HealthStatus.OK

    async def test_a_bad_pod_costs_only_itself(
        self, tmp_path, base, clock, informer, start
    ) -> None:
        """Missing, wrong-typed and duplicated fields."""
        nameless, duplicate = pod_object("2"), {**pod_object("1"), "kind": "Pod"}
        nameless["metadata"] = {"uid": "2"}
        wrong = {**pod_object("3"), "spec": {"containers": "app"}}
        path = tmp_path / "pods.json"
        path.write_text(pod_list(nameless, wrong, 7, pod_object("1"), duplicate, pod_object("4")))
        source = PodSource(CgroupTree(base, clock), informer, clock, pods_file=path)
        await start(source)

        assert names(informer) == ["pod-1", "pod-4"]
        assert source.health().status is HealthStatus.DEGRADED
        assert "4 pods left out, the first because of items[0].metadata.name" in (
            source.health().reason
        )

    async def test_a_scan_that_hangs_makes_the_source_unhealthy(
        self, base, clock, informer, start, monkeypatch
    ) -> None:
        """The loop goes on; /healthz names what does not."""
        release = threading.Event()
        tree = CgroupTree(base, clock)
        source = PodSource(tree, informer, clock)
        await start(source)
        scan = tree.scan
        monkeypatch.setattr(tree, "scan", lambda: release.wait(60) and scan())

        await clock.advance(SILENCE_TIMEOUT + 1.0)
        assert source.health() == PartHealth(HealthStatus.UNHEALTHY, "no round finished for 6 s")

        release.set()
        await clock.until(lambda: source.health().status is HealthStatus.OK)


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        (["cgroup.controllers/"], "."),
        (["cpu/", "memory/", "unified/"], "cpu"),
        (["cpuacct/", "memory/"], "cpuacct"),
        (["memory/"], "memory"),
        ([], "."),
    ],
)
def test_the_hierarchy_that_is_scanned(tmp_path: Path, entries: list[str], wanted: str) -> None:
    """The unified one, else one v1 controller; hybrid hosts keep the pods on v1."""
    for entry in entries:
        (tmp_path / entry).mkdir()

    assert reference_hierarchy(tmp_path) == tmp_path / wanted
