"""Which pods may leave: the chain of filters, its gates, and what an annotation overrides."""

from typing import Any

import pytest

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import PriorityClass
from koord_descheduler.config import Namespaces, PriorityThreshold
from koord_descheduler_plugins.migration.args import (
    EvictionGate,
    EvictionPolicy,
    MigrationControllerArgs,
    ObjectLimiter,
)
from koord_descheduler_plugins.migration.jobs import JobTable
from koord_descheduler_plugins.migration.rules import ProfileRules, RateLimit, quota_limits
from tests.support.descheduler.migration import Json, make_cluster, make_job, make_pod

FORCED = {"descheduler.alpha.kubernetes.io/evict": "true"}
LOCAL = {"volumes": [{"name": "v", "emptyDir": {}}]}
CLAIM = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}


def rules(jobs: JobTable | None = None, *, replicas: int = 10, **args: Any) -> ProfileRules:
    """Rules of a cluster where n2 has no room."""
    cluster = make_cluster(make_pod("other", node="n2"), replicas=replicas)
    cluster.priority_classes["high"] = PriorityClass("high", 1000)
    quick: Json = {"default_job_mode": "EvictDirectly"}
    return ProfileRules(
        "p", MigrationControllerArgs(**{**quick, **args}), jobs or JobTable(), cluster
    )


def gates(*names: EvictionGate) -> Json:
    return {"skip_eviction_gates": tuple(name.value for name in names)}


@pytest.mark.parametrize(
    ("pod", "args", "gate"),
    [
        ({"owner": ""}, {}, EvictionGate.BARE_PODS),
        ({"owner": "", "phase": "Failed"}, {}, EvictionGate.BARE_PODS),
        ({"priority": 2_000_000_000}, {}, EvictionGate.SYSTEM_CRITICAL),
        (
            {"priority": 10},
            {"priority_threshold": PriorityThreshold(value=10)},
            EvictionGate.PRIORITY_THRESHOLD,
        ),
        (
            {"priority": 1000},
            {"priority_threshold": PriorityThreshold(name="high")},
            EvictionGate.PRIORITY_THRESHOLD,
        ),
        (LOCAL, {}, EvictionGate.LOCAL_STORAGE),
        (CLAIM, {"ignore_pvc_pods": True}, EvictionGate.PVC),
        ({}, {"label_selector": LabelSelector({"a": "b"})}, EvictionGate.LABEL_SELECTOR),
        ({}, {"namespaces": Namespaces(exclude=("default",))}, EvictionGate.NAMESPACES),
        ({}, {"namespaces": Namespaces(include=("other",))}, EvictionGate.NAMESPACES),
        ({}, {"replicas": 1}, EvictionGate.EXPECTED_REPLICAS),
    ],
)
def test_each_check_its_gate_and_the_annotation(pod: Json, args: Json, gate: EvictionGate) -> None:
    """Refused; let in with the gate, and with the annotation on the pod; another gate is none."""
    other = EvictionGate.NODE_FIT

    assert rules(**args).reject_reason(make_pod(**pod))
    assert rules(**args, **gates(other)).reject_reason(make_pod(**pod))
    assert not rules(**args, **gates(gate)).reject_reason(make_pod(**pod))
    assert not rules(**args).reject_reason(make_pod(**pod, annotations=FORCED))


@pytest.mark.parametrize(
    "pod",
    [
        {"owner_kind": "DaemonSet"},
        {"deleting": True},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
        {"annotations": {"kubernetes.io/config.source": "file"}},
    ],
)
def test_what_no_gate_and_no_annotation_overrides(pod: Json) -> None:
    """Koordinator's annotation overrides even these."""
    forced = {**pod, "annotations": {**pod.get("annotations", {}), **FORCED}}

    assert rules(**gates(*EvictionGate)).reject_reason(make_pod(**forced))


def test_the_highest_eviction_cost() -> None:
    """No gate, but the annotation overrides it."""
    never = {"scheduling.koordinator.sh/eviction-cost": "2147483647"}
    less = {"scheduling.koordinator.sh/eviction-cost": "2147483646"}

    assert rules(**gates(*EvictionGate)).reject_reason(make_pod(annotations=never))
    assert not rules().reject_reason(make_pod(annotations=less))
    assert not rules().reject_reason(make_pod(annotations=never | FORCED))


def test_a_pod_with_a_job_already() -> None:
    """Nothing overrides that."""
    jobs = JobTable()
    jobs.put(make_job())

    assert "PodMigrationJob" in rules(jobs).reject_reason(make_pod(annotations=FORCED))
    assert not rules(jobs).reject_reason(make_pod("web-2", uid="2"))


@pytest.mark.parametrize(
    ("pod", "refused"),
    [
        ({}, False),
        ({"schedulerName": "default-scheduler"}, True),
        ({"owner": "", "node": ""}, False),
        ({"owner": ""}, True),
    ],
)
def test_reservation_first_needs_a_scheduler_and_an_heir(pod: Json, *, refused: bool) -> None:
    """A bare pod only while it has no node."""
    first = rules(default_job_mode="ReservationFirst", **gates(EvictionGate.BARE_PODS))

    assert bool(first.reject_reason(make_pod(**pod))) == refused
    direct = rules(**gates(EvictionGate.BARE_PODS))
    assert not direct.reject_reason(make_pod(**pod))


def test_gates_of_quotas() -> None:
    """Each takes its own check away."""
    full = {"max_migrating_globally": 1, "max_migrating_per_node": 1,
            "max_migrating_per_namespace": 1}  # fmt: skip
    found = quota_limits(MigrationControllerArgs(**full, **gates(*EvictionGate)))

    assert (found.globally, found.per_node, found.per_namespace) == (None, 0, None)
    assert [found.check_migrating, found.check_unavailable, found.check_replicas] == [False] * 3
    found = quota_limits(MigrationControllerArgs(**full))
    assert (found.globally, found.per_node, found.per_namespace) == (1, 1, 1)
    assert found.check_migrating
    assert found.check_unavailable
    assert found.check_replicas


def test_node_fit_is_asked_just_before_an_eviction() -> None:
    """In the other filter it is not; without the argument never."""
    huge = make_pod(priority=1)
    nowhere = rules(node_fit=True, node_selector="zone=none")

    assert nowhere.unschedulable(huge)
    assert not nowhere.reject_reason(huge)
    assert not rules(node_selector="zone=none").unschedulable(huge)
    assert not rules(
        node_fit=True, node_selector="zone=none", **gates(EvictionGate.NODE_FIT)
    ).unschedulable(huge)


@pytest.mark.parametrize(
    ("limiters", "replicas", "wanted"),
    [
        ({"workload": ObjectLimiter(duration=300.0)}, 100,
         [RateLimit("workload", "uid-rs", 10 / 300, 1, 300.0)]),
        ({"workload": ObjectLimiter(duration=300.0)}, 3,
         [RateLimit("workload", "uid-rs", 1 / 300, 1, 300.0)]),
        ({"workload": ObjectLimiter(duration=1.0, max_migrating=10, burst=2)}, 50,
         [RateLimit("workload", "uid-rs", 10.0, 2, 1.0)]),
        ({"workload": ObjectLimiter(duration=0.0)}, 50, []),
        ({"namespace": ObjectLimiter(duration=60.0, max_migrating="10%")}, 50, []),
        ({"namespace": ObjectLimiter(duration=60.0, max_migrating=6),
          "workload": ObjectLimiter(duration=0.0)}, 50,
         [RateLimit("namespace", "default", 0.1, 1, 60.0)]),
    ],
)  # fmt: skip
def test_paces(limiters: dict[str, ObjectLimiter], replicas: int, wanted: list[RateLimit]) -> None:
    """Of workloads by replicas, of namespaces by a number; one without effect stops no other."""
    assert (
        list(rules(object_limiters=limiters, replicas=replicas).rate_limits(make_pod())) == wanted
    )


def test_a_bare_pod_has_no_pace_of_a_workload() -> None:
    """It has none."""
    assert rules().rate_limits(make_pod(owner="")) == ()


@pytest.mark.parametrize(
    ("pod", "job", "wanted"),
    [
        ("", "", EvictionPolicy.EVICTION),
        ("", "Delete", EvictionPolicy.DELETE),
        ("SoftEviction", "Delete", EvictionPolicy.SOFT_EVICTION),
        ("nonsense", "Delete", EvictionPolicy.EVICTION),
    ],
)
def test_the_policy(pod: str, job: str, wanted: EvictionPolicy) -> None:
    """The pod's label, else the job's; an unknown one is the default."""
    labels = {"koordinator.sh/evict-policy": pod} if pod else {}

    assert rules().policy(make_job(policy=job), make_pod(labels=labels)) is wanted
