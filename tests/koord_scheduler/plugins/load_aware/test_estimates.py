"""What pods are estimated to use."""

from typing import Any

import pytest

from koord.controlplane.testing import make_pod
from koord_scheduler_plugins.load_aware.estimates import Estimator
from tests.support.scheduler.load_aware import asks, container, make_args, scheduled

GI = 1 << 30
FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
AFTER = "scheduling.koordinator.sh/load-estimated-seconds-after-"
PRIORITY = "koordinator.sh/priority-class"


def estimate(spec: Any, args: Any = None, **facts: Any) -> tuple[int, ...]:
    pod = make_pod("p", spec=spec, **facts)
    return Estimator(make_args(**(args or {}))).incoming(pod)[0]


def split(request: str, limit: str, memory: str, most: str) -> Any:
    amounts = {"cpu": request, "memory": memory}, {"cpu": limit, "memory": most}
    return {"containers": [container(requests=amounts[0], limits=amounts[1])]}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({}, (250, 200 << 20)),
        (asks("500m", "1Gi", limits=False), (425, 751619277)),
        (split("500m", "2", "1Gi", "4Gi"), (1700, 3006477107)),
        (asks("4", "8Gi"), (3400, 6012954214)),
        (asks("10m", limits=False), (9, 200 << 20)),
    ],
)
def test_requests_limits_and_defaults(spec: Any, found: tuple[int, int]) -> None:
    """The larger of both, scaled and rounded, but never above the limit."""
    assert estimate(spec) == found


BATCH = {"kubernetes.io/batch-cpu": "4k", "kubernetes.io/batch-memory": "8Gi"}
MID = {"kubernetes.io/mid-cpu": "4k", "kubernetes.io/mid-memory": "8Gi"}


@pytest.mark.parametrize(
    ("found", "amounts", "wanted"),
    [
        ("koord-batch", BATCH, (3400, 6012954214)),
        ("koord-mid", MID, (3400, 6012954214)),
        ("koord-batch", {"cpu": "4"}, (250, 200 << 20)),
        ("koord-mid", {"cpu": "4"}, (250, 200 << 20)),
        ("koord-free", {"cpu": "4"}, (250, 200 << 20)),
        ("unknown", {"cpu": "4"}, (3400, 200 << 20)),
    ],
)
def test_translated_requests(found: str, amounts: Any, wanted: tuple[int, int]) -> None:
    """Pods of a class without its requests count as those without any."""
    spec = {"containers": [container(requests=amounts, limits=amounts)]}
    assert estimate(spec, labels={PRIORITY: found}) == wanted


@pytest.mark.parametrize(
    ("annotation", "allowed", "cpu"),
    [
        ('{"cpu": 110}', True, 4000),
        ('{"cpu": 50}', True, 2000),
        ('{"cpu": 50}', False, 3400),
        ('{"cpu": -50}', True, 3400),
        ("{", True, 3400),
    ],
)
def test_factors_of_a_pod(annotation: str, allowed: bool, cpu: int) -> None:
    """Only if the arguments allow it, and if they make sense."""
    args = {"allowCustomizeEstimation": allowed}
    assert estimate(asks("4", "8Gi"), args, annotations={FACTORS: annotation})[0] == cpu


def test_resources_of_the_arguments_are_estimated_if_they_have_a_factor() -> None:
    """In the order of their names."""
    args = {"estimatedScalingFactors": {"example.com/gpu": 100}, "supportedResources": ["a/b"]}
    amounts = {"example.com/gpu": "2", "a/b": "3"}
    spec = {"containers": [container(requests=amounts, limits=amounts)]}
    assert make_args(**args).resources == ("a/b", "cpu", "example.com/gpu", "memory")
    assert estimate(spec, args) == (0, 250, 2, 200 << 20)


@pytest.mark.parametrize(
    ("args", "annotations", "deadline"),
    [
        ({}, {}, None),
        ({"estimatedSecondsAfterPodScheduled": 60}, {}, 160.0),
        ({"estimatedSecondsAfterInitialized": 60}, {}, 260.0),
        (
            {"estimatedSecondsAfterInitialized": 60, "estimatedSecondsAfterPodScheduled": 9},
            {},
            260.0,
        ),
        ({"estimatedSecondsAfterPodScheduled": 60}, {"pod-scheduled": "5"}, 105.0),
        ({}, {"initialized": "5", "pod-scheduled": "7"}, 205.0),
        ({"estimatedSecondsAfterPodScheduled": 60}, {"pod-scheduled": "-5"}, 160.0),
        ({"estimatedSecondsAfterPodScheduled": -60}, {}, None),
    ],
)
def test_deadline_of_the_estimate(args: Any, annotations: Any, deadline: float | None) -> None:
    """A pod that was scheduled at 100 and initialized at 200."""
    named = {AFTER + name: text for name, text in annotations.items()}
    pod = make_pod("p", annotations=named, status=scheduled(100, initialized=200))
    found = Estimator(make_args(allowCustomizeEstimation=True, **args)).assigned(pod)
    assert found.since == 100.0
    assert found.deadline == (float("-inf") if deadline is None else deadline)


@pytest.mark.parametrize(
    ("facts", "is_prod"),
    [
        ({"labels": {PRIORITY: "koord-prod"}, "priority": 5000}, True),
        ({"labels": {PRIORITY: "other"}, "priority": 5500, "qos": "Burstable"}, True),
        ({"priority": 9500}, True),
        ({"priority": 5500}, False),
        ({"qos": "Guaranteed"}, True),
        ({"qos": "BestEffort"}, False),
        ({"labels": {"koordinator.sh/qosClass": "BE"}, "qos": "Burstable"}, False),
        ({"qos": ""}, False),
        ({"qos": "", "spec": asks("1")}, True),
    ],
)
def test_prod_pods(facts: Any, is_prod: bool) -> None:
    """By label, priority or QoS class, in this order; a wrong label hides the priority."""
    assert Estimator(make_args()).incoming(make_pod("p", **facts))[1] is is_prod
