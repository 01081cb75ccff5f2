"""Loads that follow events are those that are counted from nothing."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.controlplane.testing import make_pod
from koord_scheduler.framework.nodes.adapters import filter_vector, score_vector
from koord_scheduler.framework.nodes.resultcache import ResultCache
from koord_scheduler.framework.status import CycleInput, CycleState, Status, Verdicts
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.load_aware.estimates import Estimator, LoadAwareSchedulingArgs
from koord_scheduler_plugins.load_aware.loads import NodeLoad
from tests.support import clusters
from tests.support.oracles.load_aware import RESERVE, PlainLoad, amounts
from tests.support.scheduler.load_aware import RAW, THRESHOLDS, LoadKit, asks, scheduled

NAMES = st.sampled_from(["a", "b", "c", "d"])
PODS = st.sampled_from(["p", "q", "r"])
CPUS = (st.just(15_000) | st.integers(0, 18_000)).map(lambda milli: f"{milli}m")
MEMORY = st.integers(0, 70).map(lambda gi: f"{gi}Gi")
AGES = st.sampled_from([0.0, 1.0, 30.0, 59.0, 60.0, 61.0, 119.0, 120.0, 200.0])
PROD = {"koordinator.sh/priority-class": "koord-prod"}
BATCH = {"koordinator.sh/priority-class": "koord-batch"}
OWN: list[dict[str, Any]] = [  # thresholds of a node
    {},
    {"prodUsageThresholds": {"ephemeral-storage": 90}},
    {"prodUsageThresholds": {"cpu": 30, "ephemeral-storage": 90}},
    {"usageThresholds": {"memory": 30}, "prodUsageThresholds": {"cpu": 0}},
    {"usageThresholds": {"ephemeral-storage": 90}},
]
ARGS: list[dict[str, Any]] = [
    {},
    {"dominantResourceWeight": 3, "resourceWeights": {"cpu": 2, "memory": 1}},
    {
        "prodUsageThresholds": {"cpu": 40},
        "scoreAccordingProdUsage": True,
        "prodUsageIncludeSys": True,
        "filterExpiredNodeMetrics": False,
    },
    {
        "aggregated": {
            "usageThresholds": {"cpu": 60, "memory": 70},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "10m",
            "scoreAggregationType": "avg",
        },
        "estimatedSecondsAfterPodScheduled": 90,
        "estimatedSecondsAfterInitialized": 100,
    },
]
PENDING = [
    make_pod("new", phase="Pending"),
    make_pod("new", phase="Pending", spec=asks("1", "2Gi"), labels=PROD),
    make_pod("new", phase="Pending", spec=asks("4", "1Gi"), labels=BATCH),
]


class Following(RuleBasedStateMachine):
    """Random clusters; one plugin and results that are kept go along with all that happens."""

    @initialize(args=st.sampled_from(ARGS))
    def begin(self, args: dict[str, Any]) -> None:
        self.kit = LoadKit(**args)
        self.gone: dict[str, dict[str, Any]] = {}
        self.kept = ResultCache()
        self.earlier = self.kit.view()

    @rule(name=NAMES, cpu=st.sampled_from([0, 8, 16]), raw=st.booleans(), own=st.sampled_from(OWN))
    def node(self, name: str, cpu: int, raw: bool, own: dict[str, Any]) -> None:
        annotations = {RAW: '{"cpu": "6"}'} if raw else {}
        annotations |= {THRESHOLDS: json.dumps(own)} if own else {}
        self.kit.node(name, annotations, cpu=cpu, memory="64Gi")
        self.check()

    @rule(name=NAMES)
    def remove_node(self, name: str) -> None:
        if self.kit.view().row(name) is not None:
            self.kit.remove_node(name)
            self.gone.pop(name, None)
        self.check()

    @rule(name=NAMES, ago=AGES, cpu=CPUS, memory=MEMORY, p95=st.none() | CPUS, used=CPUS,
          classes=st.sampled_from(["", "koord-prod"]), reported=st.sets(PODS),
          window=st.sampled_from(["5m0s", "10m0s"]), half=st.booleans())  # fmt: skip
    def report(
        self, name: str, ago: float, cpu: str, memory: str, p95: str | None, used: str,
        classes: str, reported: set[str], window: str, half: bool,
    ) -> None:  # fmt: skip
        memory_of_pod = {} if half else {"memory": "1Gi"}
        pods = [
            {"namespace": "default", "name": pod, "priority": classes,
             "podUsage": {"resources": {"cpu": used, **memory_of_pod}}}
            for pod in sorted(reported)
        ]  # fmt: skip
        peak = None if p95 is None else {"cpu": p95, "memory": memory}
        self.kit.report(
            name, ago=ago, usage={"cpu": cpu, "memory": memory}, p95=peak, window=window,
            system={"cpu": "500m", "memory": "1Gi"}, status={"podsMetric": pods},
        )  # fmt: skip
        self.gone.pop(name, None)
        self.check()

    @rule(name=NAMES, empty=st.booleans())
    def report_nothing(self, name: str, empty: bool) -> None:
        if empty:
            self.kit.report(name, status={"nodeMetric": None, "podsMetric": []})
            self.gone.pop(name, None)
        elif name in self.kit.state.reports:
            self.kit.remove_report(name)
            self.gone.pop(name, None)
        self.check()

    @rule(name=PODS, node=NAMES, spec=st.sampled_from([asks(), asks("2", "4Gi")]),
          labels=st.sampled_from([{}, PROD, BATCH]), ago=st.none() | AGES,
          phase=st.sampled_from(["Running", "Succeeded"]),
          annotations=st.sampled_from([{}, {}, RESERVE]))  # fmt: skip
    def pod(
        self, name: str, node: str, spec: Any, labels: dict[str, str], ago: float | None,
        phase: str, annotations: dict[str, str],
    ) -> None:  # fmt: skip
        status: dict[str, Any] = {"conditions": []}
        if ago is not None:
            status = scheduled(self.kit.now - ago, initialized=self.kit.now - ago)
        created = None if ago is None else self.kit.now - ago
        made = make_pod(
            name, node=node, spec=spec, labels=labels, status=status, created=created, phase=phase,
            annotations=annotations,
        )  # fmt: skip
        made = replace(made, uid=f"{made.uid}-{ago}-{node}")
        old = self.kit.state.pod(made.key)
        if old is not None and (old.uid != made.uid or (made.finished and not old.finished)):
            self.left(old)
        self.kit.put(made)
        self.check()

    @rule(name=PODS)
    def remove_pod(self, name: str) -> None:
        old = self.kit.state.pod(f"default/{name}")
        if old is not None:
            self.left(old)
            self.kit.remove_pod(old)
        self.check()

    @rule(seconds=st.sampled_from([1.0, 59.0, 121.0]))
    def time_passes(self, seconds: float) -> None:
        asyncio.run(self.kit.clock.advance(seconds))
        self.check()

    @rule()
    def restart(self) -> None:
        self.kit.plugin = self.kit.another()
        self.kept = ResultCache()
        self.gone = {}
        self.check()

    @rule()
    def look_back(self) -> None:
        """What is kept is right for the view of an earlier moment, too."""
        plugin, view = self.kit.plugin, self.earlier
        every = np.ones(len(view), np.bool_)
        for pod in PENDING:
            cycle, kept = CycleInput(CycleState(), pod, view), self.kept.of(pod)
            kept_verdicts, verdicts = (
                kept.filter(plugin, cycle, every),
                filter_vector(plugin, cycle),
            )
            assert [status_of(kept_verdicts, row) for row in range(len(view))] == [
                status_of(verdicts, row) for row in range(len(view))
            ]
            scores = score_vector(plugin, cycle, every)
            assert kept.score(plugin, cycle, every).tolist() == scores.tolist()
        self.earlier = self.kit.view()

    def left(self, pod: ClusterPod) -> None:
        """Its node's usage is less by what was reported of it, if the report knows it."""
        report = self.kit.state.reports.get(pod.node)
        if pod.finished or report is None or self.kit.view().row(pod.node) is None:
            return
        at = float("-inf") if report.update_time is None else report.update_time
        for one in report.pods:
            if f"{one.namespace}/{one.name}" == pod.key and (pod.created or 0) <= at:
                self.gone.setdefault(pod.node, {})[pod.key] = amounts(one.usage)

    def check(self) -> None:
        view, plugin = self.kit.view(), self.kit.plugin
        every = np.ones(len(view), np.bool_)
        for pod in PENDING:
            assert_forms_agree(plugin, pod, view)
            verdicts = self.kept.of(pod).filter(plugin, CycleInput(CycleState(), pod, view), every)
            scores = self.kept.of(pod).score(plugin, CycleInput(CycleState(), pod, view), every)
            for row in range(len(view)):
                name = view.node(row).name
                plain = PlainLoad(self.kit, name, self.gone.get(name, {}))
                number = verdicts.numbers[row]
                reason = verdicts.rejections[number - 1].message if number else ""
                assert (name, reason) == (name, plain.reason(pod))
                assert (name, int(scores[row])) == (name, plain.score(pod))


def status_of(verdicts: Verdicts | Mask, row: int) -> Status | None:
    """What a plugin says of a node; None: it passes."""
    assert isinstance(verdicts, Verdicts)
    number = int(verdicts.numbers[row])
    return verdicts.rejections[number - 1] if number else None


Following.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFollowing = Following.TestCase


class KeepingUp(Following):
    """As above, but what changes is counted with each event, not by the next cycle."""

    @initialize(args=st.sampled_from(ARGS))
    def begin(self, args: dict[str, Any]) -> None:
        super().begin(args)
        self.keep_up()

    @rule()
    def restart(self) -> None:
        super().restart()
        self.keep_up()

    def keep_up(self) -> None:
        self.kit.plugin.keeps_up_after = 0
        asyncio.run(self.kit.services.hooks.run())

    def check(self) -> None:
        """Only now and then: between checks no cycle follows."""
        self.checks = getattr(self, "checks", 0) + 1
        if self.checks % 3 == 0:
            super().check()


KeepingUp.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestKeepingUp = KeepingUp.TestCase


@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_more_rows_than_there_is_room_for(count: int) -> None:
    """Columns grow; what is in them stays."""
    kit = LoadKit()
    pod = PENDING[1]
    for at in range(count):
        kit.node(f"n{at}", cpu=16, memory="64Gi")
        if at in (0, 100, count - 1):
            kit.report(f"n{at}", usage={"cpu": 15, "memory": 0})
        if at == 100:
            assert kit.reason(pod, "n100")
    for at in range(count):
        assert bool(kit.reason(pod, f"n{at}")) is (at in (0, 100, count - 1))


async def test_a_pod_that_leaves_between_cycles_takes_its_usage_along() -> None:
    """Even where its row is counted anew with the very event."""
    kit = LoadKit()
    kit.plugin.keeps_up_after = 0
    await kit.services.hooks.run()
    kit.node("a", cpu=16, memory="64Gi")
    leaving = kit.pod("p", "a", created=kit.now - 600, status=scheduled(kit.now - 600))
    used = {"namespace": "default", "name": "p",
            "podUsage": {"resources": {"cpu": "8", "memory": "1Gi"}}}  # fmt: skip
    kit.report("a", usage={"cpu": "8", "memory": "1Gi"}, status={"podsMetric": [used]})
    before = kit.score(PENDING[1], "a")
    kit.remove_pod(leaving)
    assert kit.score(PENDING[1], "a") > before


def test_what_was_noted_of_a_row_that_has_moved_counts_for_an_earlier_view() -> None:
    """A report came while the node had another row."""
    kit, pod = LoadKit(), PENDING[1]
    for name in ("a", "b"):
        kit.node(name)
    view, kept = kit.view(), ResultCache().of(pod)
    cycle, every = CycleInput(CycleState(), pod, view), np.ones(2, np.bool_)
    before = kept.score(kit.plugin, cycle, every).tolist()
    kit.remove_node("a")
    kit.report("b", usage={"cpu": 48, "memory": "256Gi"})
    row = view.row("b")
    assert (row, kit.view().row("b")) == (1, 0)
    assert 0 < kit.score(pod, "b") < 100
    kit.report("b", usage={"cpu": 24, "memory": "128Gi"})
    scores = kept.score(kit.plugin, cycle, every).tolist()
    assert scores == score_vector(kit.plugin, cycle, every).tolist() != before


VERSIONS = {
    (name, cpu): clusters.read_pod(clusters.pod(name, requests={"cpu": str(cpu)}))
    for name in "abcde"
    for cpu in (1, 2)
}


@given(
    st.lists(
        st.lists(st.sampled_from(sorted(VERSIONS)), max_size=5, unique_by=lambda one: one[0]),
        min_size=2,
        max_size=6,
    )
)
def test_a_load_follows_pods_that_come_change_and_leave_in_any_order(
    steps: list[list[tuple[str, int]]],
) -> None:
    """As a reservation's pod shrinks in its place, while its consumers come behind it."""
    estimator = Estimator(LoadAwareSchedulingArgs())
    followed = NodeLoad(estimator, prod_includes_system=False)
    for step in steps:
        pods = tuple(VERSIONS[one] for one in step)
        anew = NodeLoad(estimator, prod_includes_system=False)
        followed.take_pods(pods)
        anew.take_pods(pods)
        assert followed.assigned == anew.assigned
        assert followed.estimated() == anew.estimated()
