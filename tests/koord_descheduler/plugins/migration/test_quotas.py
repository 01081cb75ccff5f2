"""Quotas: how many pods may be on their way at a time."""

from typing import Any

import pytest

from koord.cluster.facts import Owner, Workload
from koord_descheduler_plugins.migration.jobs import JobTable
from koord_descheduler_plugins.migration.rules import QuotaLimits, Quotas
from tests.support.descheduler.migration import make_cluster, make_job, make_pod

POD = make_pod("web-1", node="n1")
PODS = (
    POD,
    make_pod("web-2", node="n1"),
    make_pod("web-3", node="n2"),
    make_pod("other-1", node="n1", owner=""),
    make_pod("far-1", node="n3", namespace="far", owner=""),
)
BY_NAME = {pod.name: pod for pod in PODS}
OFF: dict[str, Any] = {"check_migrating": False, "check_unavailable": False}


def quotas(*migrating: str, replicas: int = 10, begun: bool = True, **limits: Any) -> Quotas:
    """Quotas where these pods are on their way."""
    jobs = JobTable()
    for name in migrating:
        namespace = BY_NAME[name].namespace
        jobs.put(make_job(f"of-{name}", pod=name, namespace=namespace, passed=begun))
    return Quotas(QuotaLimits(**{**OFF, **limits}), jobs, make_cluster(*PODS, replicas=replicas))


@pytest.mark.parametrize(
    ("limits", "migrating", "exceeded"),
    [
        ({"globally": 2}, ("web-2",), ""),
        ({"globally": 2}, ("web-2", "far-1"), "maxMigratingGlobally is 2"),
        ({"globally": 1}, ("web-1",), ""),
        ({"globally": 0}, ("web-2", "far-1"), ""),
        ({"per_node": 2}, ("web-2", "web-3"), ""),
        ({"per_node": 2}, ("web-2", "other-1"), "2 pods of node n1"),
        ({"per_node": 1}, ("web-1", "web-3", "far-1"), ""),
        ({"per_namespace": 2}, ("web-2", "far-1"), ""),
        ({"per_namespace": 2}, ("web-2", "web-3"), "2 pods of namespace default"),
        ({"per_namespace": 1}, ("web-1",), ""),
        ({"check_migrating": True, "per_workload": 2}, ("web-2", "other-1"), ""),
        ({"check_migrating": True, "per_workload": 2}, ("web-2", "web-3"), "at most 2 may"),
        ({"check_migrating": True}, ("web-2",), ""),  # 2 of 10 replicas
        ({"check_migrating": True}, ("web-2", "web-3"), "at most 2 may"),
        ({"check_migrating": True, "per_workload": "10%"}, ("web-2",), "at most 1 may"),
        ({"check_unavailable": True, "unavailable": 2}, ("web-2",), ""),
        ({"check_unavailable": True, "unavailable": 2}, ("web-2", "web-3"), "at most 2 may be"),
    ],
)
def test_the_limits(limits: dict[str, Any], migrating: tuple[str, ...], exceeded: str) -> None:
    """Each of them, under it and at it; the pod's own job never counts."""
    found = quotas(*migrating, **limits).exceeded(POD, arbitrating=False)

    assert exceeded in found
    assert bool(exceeded) == bool(found)


@pytest.mark.parametrize("limits", [{"globally": 1}, {"per_node": 1}, {"per_namespace": 1},
                                    {"check_migrating": True, "per_workload": 1}])  # fmt: skip
def test_the_arbitrator_does_not_count_what_waits(limits: dict[str, Any]) -> None:
    """Else two waiting jobs would keep each other waiting for ever."""
    waiting = quotas("web-2", begun=False, **limits)

    assert waiting.exceeded(POD, arbitrating=True) == ""
    assert waiting.exceeded(POD, arbitrating=False) != ""


@pytest.mark.parametrize(
    "other",
    [{"ready": False}, {"deleting": True}, {"phase": "Failed"}, {"node": ""}],
)
def test_pods_that_are_not_active_and_ready_are_unavailable(other: dict[str, Any]) -> None:
    """They and those on their way together; each counts once."""
    cluster = make_cluster(POD, make_pod("web-2", **other), replicas=10)
    jobs = JobTable()
    jobs.put(make_job("of-2", pod="web-2"))
    limited = Quotas(QuotaLimits(check_migrating=False, unavailable=1), jobs, cluster)

    assert "1 pods of its workload" in limited.exceeded(POD, arbitrating=False)
    assert limited.exceeded(make_pod("web-2", **other), arbitrating=False) == ""


@pytest.mark.parametrize(
    ("replicas", "limits", "passes"),
    [
        (1, {}, False),
        (2, {}, True),
        (4, {"per_workload": 4}, False),
        (4, {"unavailable": "100%"}, False),
        (1, {"check_replicas": False}, True),
        (0, {}, False),
    ],
)
def test_a_workload_keeps_some_replicas(
    replicas: int, limits: dict[str, Any], *, passes: bool
) -> None:
    """Else its only pod would leave."""
    assert (quotas(replicas=replicas, **limits).few_replicas(POD) == "") == passes


def test_a_bare_pod_has_no_workload() -> None:
    """No check of a workload is about it."""
    every = quotas("web-2", "web-3", check_migrating=True, check_unavailable=True)

    assert every.exceeded(BY_NAME["other-1"], arbitrating=False) == ""
    assert every.few_replicas(BY_NAME["other-1"]) == ""


def test_a_workload_that_is_gone_has_no_replicas_and_one_of_an_unknown_kind_its_pods() -> None:
    """Koordinator asks the scale subresource of the latter."""
    pods = [make_pod(f"p-{number}", owner="x", owner_kind="Rollout") for number in range(3)]
    gone = make_pod("gone", owner="y")
    known = Quotas(QuotaLimits(), JobTable(), make_cluster(*pods, gone))

    assert known.replicas(pods[0]) == 3
    assert known.replicas(gone) == 0


@pytest.mark.parametrize(("owner_kind", "replicas"), [("Deployment", 0), ("Rollout", 3)])
def test_a_replica_set_whose_deployment_is_gone_has_no_replicas(
    owner_kind: str, replicas: int
) -> None:
    """Its pods go with it. Of other owners nobody knows whether they are there."""
    cluster = make_cluster(POD)
    owner = Owner(owner_kind, "web", "uid-web", controller=True)
    cluster.workloads.put(
        Workload(
            kind="ReplicaSet",
            namespace="default",
            name="rs",
            uid="uid-rs",
            replicas=3,
            controller=owner,
        )
    )

    assert Quotas(QuotaLimits(), JobTable(), cluster).replicas(POD) == replicas
