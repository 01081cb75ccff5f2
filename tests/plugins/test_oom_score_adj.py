"""OOMScoreAdj: what pods may ask for, and which processes get it."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Container
from koord.plugin import InvalidObject
from koordlet.plugin import PodMeta
from koordlet.plugin.pods import settings
from koordlet.plugin.testing import FakeHost, FakePod, PluginHarness, make_pod
from koordlet_plugins.oom_score_adj import OOMScoreAdj, Scores, pod_scores

SPEC, DEFAULT = "koordinator.sh/oom-score-adj-spec", "koordinator.sh/oom-score-adj"
GAUGE = "koordlet_container_oom_score_adj"
STAT = "{} (a ) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n"


def pod(spec: object = None, default: str | None = None) -> PodMeta:
    """A pod that asks for it; None: without the annotation."""
    text = spec if spec is None or isinstance(spec, str) else json.dumps(spec)
    found = {SPEC: text, DEFAULT: default}
    annotations = {key: value for key, value in found.items() if value is not None}
    return make_pod("web", annotations=annotations, containers=(Container("c1"), Container("c2")))


@pytest.mark.parametrize(
    ("spec", "default", "scores"),
    [
        ({"c1": 100}, "-500", (100, -500)),
        ({"c1": 100}, None, (100, None)),
        (None, "-1000", (-1000, -1000)),
        (None, "+7", (7, 7)),
        ("", "1000", (1000, 1000)),
        ({}, None, None),
        (None, "", None),
        (None, None, None),
    ],
)
def test_scores_of_containers(spec, default, scores) -> None:
    """A container's own score first, then that for all; nothing is asked for without either."""
    found = pod_scores(pod(spec, default).pod)

    assert (found and (found.of("c1"), found.of("c2"))) == scores


@pytest.mark.parametrize(
    ("spec", "default"),
    [
        (None, "2000"),
        (None, "-1001"),
        (None, "1.5"),
        (None, "high"),
        (None, "\uff19"),
        (None, "1" * 5000),
        ("{invalid}", "-500"),
        ({"c1": "5"}, None),
        ({"c1": True}, None),
        ({"c1": 1001}, "5"),
        ("[5]", None),
    ],
)
def test_bad_scores_are_refused_whole(spec, default) -> None:
    """Also when the other annotation is good: what was meant is not clear."""
    with pytest.raises(InvalidObject, match=r"pod default/web: koordinator\.sh/oom-score-adj"):
        pod_scores(pod(spec, default).pod)


@given(st.text(), st.text())
def test_any_annotations_are_scores_or_refused(spec: str, default: str) -> None:
    """No text gets a score through that the kernel does not know."""
    try:
        found = pod_scores(pod(spec, default).pod)
    except InvalidObject:
        return
    for score in (*(found or Scores()).containers.values(), (found or Scores()).others or 0):
        assert -1000 <= score <= 1000


class Processes:
    """The processes of a fake host."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self.groups: FakePod = host.add_pod("web", containers=("web-c1", "web-c2"))

    def put(self, container: str, *pids: int) -> None:
        """Have exactly these processes in a container; a new one began at 10 times its pid."""
        self.groups.containers[f"web-{container}"].set_processes(*pids)
        for pid in pids:
            if not (self._host.paths.proc / f"{pid}").exists():
                self.start(pid, pid * 10)

    def start(self, pid: int, start_time: int) -> None:
        self._host.write(f"proc/{pid}/stat", STAT.format(pid, start_time))
        self._host.write(f"proc/{pid}/oom_score_adj", "3\n")

    def score(self, pid: int) -> int:
        return int((self._host.paths.proc / f"{pid}/oom_score_adj").read_text())


@pytest.fixture
def processes(host: FakeHost) -> Processes:
    return Processes(host)


async def test_scores_are_given_and_taken_back(host, processes) -> None:
    """To every process of a container, new ones in the next round, until the annotation is gone."""
    processes.put("c1", 11, 12)
    processes.put("c2", 21)
    harness = PluginHarness(OOMScoreAdj(), pods=[pod({"c1": 100})], host=host)

    def shown() -> float | None:
        names = {"pod_name": "web", "pod_namespace": "default", "pod_uid": "web"}
        labels = {"node": "test-node", "container_name": "c1", **names}
        return harness.registry.get_sample_value(GAUGE, labels)

    async with harness:
        await harness.rounds(1)
        assert [processes.score(pid) for pid in (11, 12, 21)] == [100, 100, 3]
        assert shown() == 100
        processes.put("c1", 12, 13)
        await harness.rounds(1)
        assert [processes.score(pid) for pid in (11, 12, 13)] == [3, 100, 100]
        harness.set_pods(pod())
        await harness.advance(0.1)
        assert [processes.score(pid) for pid in (12, 13)] == [3, 3]
        assert (shown(), harness.claims()) == (None, [])


@pytest.mark.parametrize("comes", [True, False])
async def test_a_container_that_is_being_started_has_its_score_before(
    host, processes, comes: bool
) -> None:
    """When the runtime goes on, its first process has it; and keeps it when the pod is listed."""
    processes.put("c1", 11)
    meta = pod({"c1": 100})
    announced = replace(meta, containers=meta.containers[:1], sandbox="")
    async with PluginHarness(OOMScoreAdj(), pods=[], host=host) as harness:
        await harness.rounds(1)
        start = asyncio.create_task(harness.plugin.start(announced))
        await harness.advance(0)
        assert start.done()
        assert processes.score(11) == 100

        await harness.advance(30)
        assert processes.score(11) == 100
        if comes:
            harness.set_pods(meta)
        await harness.advance(60)

        assert processes.score(11) == (100 if comes else 3)
        harness.set_pods()
        await harness.advance(1)
        assert processes.score(11) == 3


async def test_another_container_of_a_known_pod_is_started(host, processes) -> None:
    """The scores of those that run already stay."""
    processes.put("c1", 11)
    processes.put("c2", 21)
    meta = pod({"c1": 100}, "-500")
    first, second = (replace(meta, containers=(one,)) for one in meta.containers)
    async with PluginHarness(OOMScoreAdj(), pods=[first], host=host) as harness:
        await harness.rounds(1)
        start = asyncio.create_task(harness.plugin.start(second))
        await harness.advance(0)
        assert start.done()

        assert [processes.score(pid) for pid in (11, 21)] == [100, -500]


async def test_a_process_that_has_ended_is_simply_gone(host, processes) -> None:
    """Between the list and the look at it, or between two rounds."""
    processes.groups.containers["web-c1"].set_processes(11)
    harness = PluginHarness(OOMScoreAdj(), pods=[pod(default="100")], host=host)

    async with harness:
        await harness.rounds(2)
        assert harness.claims() == []


async def test_a_pid_that_comes_again_is_another_process(host, processes) -> None:
    """It is distinguished by its start time."""
    processes.put("c1", 11)
    harness = PluginHarness(OOMScoreAdj(), pods=[pod(default="100")], host=host)

    async with harness:
        await harness.rounds(1)
        processes.start(11, 999)
        await harness.rounds(1)
        assert processes.score(11) == 100


async def test_quiet_rounds_claim_nothing_again(host, processes) -> None:
    """The processes are listed, as nothing notifies of new ones, but no score is read or set."""
    processes.put("c1", 11)
    plugin = OOMScoreAdj()
    harness = PluginHarness(plugin, pods=[pod(default="100")], host=host)
    async with harness:
        await harness.rounds(1)
        harness.changes.clear()
        await harness.rounds(3)
        assert harness.changes == []


async def test_a_bad_annotation_keeps_the_last_scores(host, processes) -> None:
    """And is reported on the pod."""
    processes.put("c1", 11)
    harness = PluginHarness(OOMScoreAdj(), pods=[pod(default="100")], host=host)
    async with harness:
        await harness.rounds(1)
        harness.set_pods(pod(default="lots"))
        await harness.rounds(2)
        assert processes.score(11) == 100
        assert [event.reason for event in harness.evictions.events] == ["SettingRejected"]


async def test_only_so_many_processes_are_looked_after(host, processes, monkeypatch) -> None:
    """Of a container and in all; it is reported once."""
    monkeypatch.setattr(settings, "MAX_PER_GROUP", 3)
    monkeypatch.setattr(settings, "MAX_PROCESSES", 4)
    processes.put("c1", *range(101, 106))
    processes.put("c2", *range(201, 206))
    harness = PluginHarness(OOMScoreAdj(), pods=[pod(default="100")], host=host)

    async with harness:
        await harness.rounds(3)
        pids = [*range(101, 106), *range(201, 206)]
        assert [pid for pid in pids if processes.score(pid) == 100] == [101, 102, 103, 201]
        assert len(harness.log.named("processes.too_many")) == 1
