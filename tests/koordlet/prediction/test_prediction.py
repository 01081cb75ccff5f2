"""Learning and predicting over simulated hours, and what survives a restart."""

import asyncio

import pytest

from koord.api.node import Node
from koord.api.nodemetric import Amounts
from koord.util.clock import stamp
from koord.util.health import HealthStatus
from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    Sample,
)
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import HalfLives
from koordlet.prediction.prediction import RAW_ALLOCATABLE, PeakPrediction, PredictionOptions
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

from .conftest import GIB, HOUR, MIB, make_pod

MINUTE = 60.0
NODE = Node("n", allocatable={"cpu": "8", "memory": "16Gi"})


class Bench:
    """A prediction on a node whose usage the test decides, minute by minute."""

    def __init__(self, clock, cache, tmp_path):
        self.clock, self.cache = clock, cache
        self.directory = tmp_path / "checkpoints"
        self.states = StatesInformer(clock)
        self.states.set_node(NODE)
        self.pods = ()
        self.set_pods()
        self.start()

    def start(self, **options):
        options = {
            "node": "n",
            "half_lives": HalfLives(12 * HOUR, 24 * HOUR),
            "cold_start": HOUR,
            "safety_margin": 10,
            "training_interval": MINUTE,
            "expiration": 30 * MINUTE,
            "checkpoint_interval": 10 * MINUTE,
            "checkpoints_per_step": 12,
        } | options
        self.prediction = PeakPrediction(
            PredictionOptions(**options),
            cache=self.cache,
            states=self.states,
            files=CheckpointFiles(lambda: OwnedDirectory.open(self.directory)),
            clock=self.clock,
        )

    def set_pods(self, *pods):
        self.pods = pods
        self.states.set_pods(
            tuple(
                PodMeta(pod=pod, cgroup=pod.uid, containers=(), qos=pod.qos_class, kube_qos=pod.qos)
                for pod in pods
            )
        )

    def measure(self, node=None, **pods):
        """One sample of the node and of pods by UID, each (cores, bytes)."""
        samples = []
        if node is not None:
            cores, size = node
            samples += [Sample(NODE_CPU_USAGE, cores), Sample(NODE_MEMORY_USAGE, size)]
        for uid, (cores, size) in pods.items():
            samples += [
                Sample(POD_CPU_USAGE, cores, (uid,)),
                Sample(POD_MEMORY_USAGE, size, (uid,)),
            ]
        self.cache.append(stamp(self.clock), samples)

    def train(self, minutes=1, **usage):
        """Let so many minutes pass with this usage, each with its sample."""
        for _ in range(minutes):
            self.clock.tick(MINUTE)
            self.measure(**usage)
            self.prediction.train()

    def predict(self):
        return self.prediction.predict(self.pods)

    def restart(self, **options):
        """End in order and start again, as the daemon does."""
        self.prediction.save()
        self.start(**options)
        self.prediction.restore()

    def gauges(self):
        return {
            (family.name, *sample.labels.values()): sample.value
            for family in self.prediction.families()
            for sample in family.samples
        }


@pytest.fixture
def bench(clock, cache, tmp_path):
    return Bench(clock, cache, tmp_path)


def grown(bench, **fields):
    """A prod pod that is older than the cold start."""
    return make_pod("firstpod", start_time=bench.clock.wall() - 2 * HOUR, **fields)


def test_before_anything_was_learnt_there_is_no_prediction(bench):
    assert bench.predict() is None
    assert bench.gauges() == {
        ("koordlet_node_priority_resource_reclaimable", "n", "koord-prod", "cpu", "core"): 0,
        ("koordlet_node_priority_resource_reclaimable", "n", "koord-prod", "memory", "byte"): 0,
        ("koordlet_node_resource_priority_reclaimable_status", "n", "koord-prod"): 1,
    }


def test_a_pod_gives_up_its_request_above_its_peak_when_pod_and_model_are_grown(bench):
    pod = grown(bench, cpu="4", memory="4Gi")
    bench.set_pods(pod)
    bench.train(30, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    young = bench.predict()
    assert young.reclaimable == Amounts(0, 0)
    assert young.peak == Amounts(4000, 4 * GIB)
    assert bench.prediction.health().detail["unpredicted_pods"] == 1
    bench.train(32, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    found = bench.predict()
    # By the classes: system 0.5 cores, prod 1 core and none, each with its bucket, and 10 %.
    assert found.peak.milli_cores == int((539 + 1035 + 25) * 1.1)
    assert found.reclaimable.milli_cores == 4000 - found.peak.milli_cores
    assert 0 < found.reclaimable.memory_bytes < 4 * GIB - 2 * GIB
    assert (
        bench.gauges()["koordlet_node_resource_priority_reclaimable_status", "n", "koord-prod"] == 0
    )


def test_batch_pods_give_up_nothing(bench):
    bench.set_pods(grown(bench, cpu="4", labels={"koordinator.sh/priority-class": "koord-batch"}))
    bench.train(70, node=(1.0, GIB), firstpod=(0.5, GIB))
    assert bench.predict().reclaimable == Amounts(0, 0)


def test_a_pod_that_cannot_be_measured_counts_with_its_request(bench):
    """As nothing, it would lower the peak of its class, and others would get what it uses."""
    bench.set_pods(grown(bench, cpu="4", memory="4Gi"))
    bench.train(70, node=(1.0, GIB))
    assert bench.predict().peak.milli_cores > 4000 * 1.1


def test_without_measurements_nothing_is_learnt(bench):
    bench.set_pods(grown(bench))
    bench.clock.tick(HOUR)
    bench.prediction.train()
    assert bench.predict() is None
    assert len(bench.prediction.models) == 0


def test_a_node_that_was_not_measured_is_no_idle_system(bench):
    bench.set_pods(grown(bench))
    bench.train(2, firstpod=(0.5, GIB))
    assert bench.predict() is None
    bench.train(1, node=(2.5, GIB), firstpod=(0.5, GIB))
    assert bench.predict().peak.milli_cores > 2000


def test_a_restart_keeps_what_was_learnt(bench):
    bench.set_pods(grown(bench, cpu="4", memory="4Gi"))
    bench.train(62, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    before = bench.predict()
    bench.restart()
    assert bench.predict() == before


def test_files_of_pods_that_went_meanwhile_are_removed(bench):
    bench.set_pods(grown(bench))
    bench.train(1, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    bench.set_pods()
    bench.restart()
    bench.restart()
    assert not (bench.directory / "firstpod").exists()
    assert (bench.directory / "__node__").exists()


def test_a_model_without_samples_is_forgotten_with_its_file(bench):
    bench.set_pods(grown(bench))
    bench.train(1, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    bench.prediction.keep()
    assert (bench.directory / "firstpod").exists()
    bench.set_pods()
    bench.train(30, node=(1.5, 2 * GIB))
    bench.prediction.keep()
    assert (bench.directory / "firstpod").exists()
    bench.train(1, node=(1.5, 2 * GIB))
    bench.prediction.keep()
    assert not (bench.directory / "firstpod").exists()


def test_a_step_of_the_wall_clock_forgets_nothing(bench):
    bench.set_pods(grown(bench))
    bench.train(1, node=(1.5, 2 * GIB), firstpod=(1.0, GIB))
    bench.clock.step_wall(5 * HOUR)
    bench.prediction.keep()
    assert "firstpod" in bench.prediction.models


def test_each_model_is_saved_within_the_interval_however_many_there_are(bench):
    """Upstream saves 12 a minute, so of 150 pods some are never saved in time."""
    pods = {f"pod-{number:03}": (0.1, MIB) for number in range(150)}
    bench.set_pods(*(make_pod(uid, start_time=0.0) for uid in pods))
    for _ in range(10):
        bench.train(1, node=(20.0, GIB), **pods)
        bench.prediction.keep()
    saved = {file.name for file in bench.directory.iterdir()}
    assert saved >= pods.keys()


def test_a_full_disk_is_reported_and_saving_goes_on_when_it_has_room(bench, monkeypatch):
    bench.directory.write_text("no directory")
    bench.train(1, node=(1.5, 2 * GIB))
    bench.prediction.keep()
    assert bench.prediction.health().status is HealthStatus.DEGRADED
    bench.directory.unlink()
    bench.prediction.keep()
    assert bench.prediction.health().status is HealthStatus.OK
    assert (bench.directory / "__node__").exists()


@pytest.mark.parametrize(
    ("annotation", "cores"),
    [
        ('{"cpu":"1200m","memory":"1Gi"}', 1200),
        ('{"cpu":"1200m"}', 8000),
        ('{"cpu":[]}', 8000),
        ("{", 8000),
        ("[" * 5000, 8000),
    ],
)
def test_the_nodes_room_is_that_before_amplification(bench, annotation, cores):
    bench.states.set_node(
        Node("n", allocatable=NODE.allocatable, annotations={RAW_ALLOCATABLE: annotation})
    )
    bench.set_pods(grown(bench, cpu="20", memory="32Gi"))
    bench.train(62, node=(0.0, 0.0), firstpod=(0.0, 0.0))
    found = bench.predict()
    assert found.reclaimable.milli_cores == cores - found.peak.milli_cores


def test_without_the_nodes_room_there_is_a_peak_only(bench):
    bench.states.set_node(Node("n"))
    bench.train(1, node=(1.5, 2 * GIB))
    assert bench.predict().reclaimable is None
    assert bench.predict().peak.milli_cores > 1500


async def test_it_learns_each_interval_and_saves_at_the_end(bench):
    stop = Stop(bench.clock)
    running = asyncio.create_task(bench.prediction.run(stop))
    await bench.clock.until(lambda: not bench.clock.rests(MINUTE))
    await bench.clock.advance(MINUTE - 2)
    bench.measure(node=(1.5, 2 * GIB))
    await bench.clock.advance(2)
    await bench.clock.until(lambda: "__node__" in bench.prediction.models)
    stop.set()
    await running
    assert (bench.directory / "__node__").exists()
