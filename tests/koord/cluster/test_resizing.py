"""Requests of pods that are being resized: cases of Kubernetes' own helpers_test.go, and ours."""

import json
from typing import Any

import pytest

from koord.cluster.decoder import Decoder
from koord.cluster.kinds import POD
from koord.cluster.state import Snapshot
from tests.support.clusters import Json, node, pod, read_node, read_pod

INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {**INFEASIBLE, "reason": "Deferred"}


def container(requests: Json | None, name: str = "c", **more: Any) -> Json:
    resources = {} if requests is None else {"requests": requests}
    return {"name": name, "resources": resources, **more}


def reported(actual: Json | None, allocated: Json | None = None, name: str = "c") -> Json:
    """The status of a container; actual is None: it does not say which resources it has."""
    return {
        "name": name,
        **({} if actual is None else {"resources": {"requests": actual}}),
        **({} if allocated is None else {"allocatedResources": allocated}),
    }


def resized(
    *containers: Json,
    statuses: list[Json],
    init: list[Json] | None = None,
    init_statuses: list[Json] | None = None,
    conditions: tuple[Json, ...] = (),
    resize: str | None = None,
    **spec: Any,
) -> Json:
    obj = pod("p", "n", containers=list(containers), initContainers=init, **spec)
    obj["status"] |= {
        "containerStatuses": statuses,
        "initContainerStatuses": init_statuses,
        "conditions": list(conditions),
        "resize": resize,
    }
    return obj


def sidecar(cpu: str) -> Json:
    return container({"cpu": cpu}, "s", restartPolicy="Always")


CPU_2, CPU_4, CPU_6 = {"cpu": "2"}, {"cpu": "4"}, {"cpu": "6"}
UPSTREAM = {
    "resized, infeasible": (
        resized(container(CPU_4), statuses=[reported(CPU_2)], conditions=(INFEASIBLE,)),
        {"cpu": 2000},
    ),
    "resized, infeasible & in-progress": (
        resized(container(CPU_6), statuses=[reported(CPU_2, CPU_4)], conditions=(INFEASIBLE,)),
        {"cpu": 4000},
    ),
    "resized, no resize status": (
        resized(container(CPU_4), statuses=[reported(CPU_2)]),
        {"cpu": 4000},
    ),
    "resized: per-resource 3-way maximum": (
        resized(
            container({"cpu": "30m", "memory": "20M", "ephemeral-storage": "10G"}),
            statuses=[
                reported(
                    {"cpu": "10m", "memory": "30M", "ephemeral-storage": "20G"},
                    {"cpu": "20m", "memory": "10M", "ephemeral-storage": "30G"},
                )
            ],
        ),
        {"cpu": 30, "memory": 30_000_000, "ephemeral-storage": 30_000_000_000},
    ),
    "resized, restartable init container, infeasible": (
        resized(
            init=[sidecar("4")],
            statuses=[],
            init_statuses=[reported(CPU_2, name="s")],
            conditions=(INFEASIBLE,),
        ),
        {"cpu": 2000},
    ),
    "resized, restartable init container, no resize status": (
        resized(init=[sidecar("4")], statuses=[], init_statuses=[reported(CPU_2, name="s")]),
        {"cpu": 4000},
    ),
    "regularcontainers with empty requests, but status with non-empty requests": (
        resized(container(None), statuses=[reported(CPU_2)]),
        {"cpu": 2000},
    ),
    "always-restart init containers with empty requests, but status with non-empty requests": (
        resized(
            init=[container(None, "s", restartPolicy="Always")],
            statuses=[],
            init_statuses=[reported(CPU_2, name="s")],
        ),
        {"cpu": 2000},
    ),
}
OURS = {
    "a scale-down under way": (resized(container(CPU_2), statuses=[reported(CPU_4, CPU_4)]), 4000),
    "a scale-down that is allocated": (
        resized(container(CPU_2), statuses=[reported(CPU_4, CPU_2)]), 4000),
    "a scale-down that is done": (
        resized(container(CPU_2), statuses=[reported(CPU_2, CPU_2)]), 2000),
    "a deferred resize": (
        resized(container(CPU_6), statuses=[reported(CPU_2, CPU_2)], conditions=(DEFERRED,)), 6000),
    "the first condition counts": (
        resized(container(CPU_6), statuses=[reported(CPU_2)],
                conditions=(DEFERRED, INFEASIBLE)), 6000),
    "infeasible in 1.32": (
        resized(container(CPU_6), statuses=[reported(CPU_2)], resize="Infeasible"), 2000),
    "proposed in 1.32": (
        resized(container(CPU_6), statuses=[reported(CPU_2)], resize="Proposed"), 6000),
    "allocated, without resources": (
        resized(container(CPU_2), statuses=[reported(None, CPU_4)]), 2000),
    "infeasible, nothing said": (
        resized(container(CPU_4), statuses=[reported(None)], conditions=(INFEASIBLE,)), 4000),
    "infeasible, of no request": (
        resized(container(CPU_4), statuses=[reported({})], conditions=(INFEASIBLE,)), 0),
    "each container has its own": (
        resized(container(CPU_4), container(CPU_4, "d"),
                statuses=[reported(CPU_6, name="d"), reported(CPU_2)]), 10_000),
    "another container's status": (
        resized(container(CPU_2), statuses=[reported(CPU_6, name="x")]), 2000),
    "an init container is as its spec says": (
        resized(container(CPU_2), init=[container(CPU_4, "i")], statuses=[reported(CPU_2)],
                init_statuses=[reported(CPU_6, name="i")]), 4000),
    "a sidecar beside": (
        resized(container(CPU_2), init=[sidecar("2")], statuses=[reported(CPU_4)],
                init_statuses=[reported(CPU_4, name="s")]), 8000),
    "overhead comes on top": (
        resized(container(CPU_2), statuses=[reported(CPU_4)], overhead={"cpu": "1"}), 5000),
    "of the pod as a whole": (
        resized(container(CPU_2), statuses=[reported(CPU_4)], resources={"requests": CPU_6}), 6000),
    "a malformed status": (resized(container(CPU_4), statuses=[reported({"cpu": "many"})]), 4000),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "requests"), UPSTREAM.values(), ids=UPSTREAM)
def test_cases_of_kubernetes(obj: Json, requests: dict[str, int]) -> None:
    """Source: component-helpers v0.35.0, resource/helpers_test.go."""
    assert dict(read_pod(obj).spec.requests) == requests


@pytest.mark.parametrize(("obj", "cpu"), OURS.values(), ids=OURS)
def test_the_cpu_that_counts(obj: Json, cpu: int) -> None:
    """Also where loads are compared, and whatever was read of the same spec before."""
    decoder = Decoder()
    decoder.object(POD, json.dumps({**obj, "status": {}}).encode())
    found = decoder.object(POD, json.dumps(obj).encode())
    assert dict(found.spec.requests).get("cpu", 0) == cpu
    requests = found.spec.requests
    assert found.spec.nonzero_cpu == (cpu if "cpu" in dict(requests) else 100)


def test_a_pod_that_is_as_its_spec_says_shares_it() -> None:
    """As nearly all are, whether their kubelet reports resources or not."""
    decoder = Decoder()
    plain = resized(container({"cpu": "2", "memory": "1Gi"}), statuses=[])
    same = resized(
        container({"cpu": "2", "memory": "1Gi"}),
        statuses=[reported({"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})],
    )
    other = resized(
        container({"cpu": "2", "memory": "1Gi"}),
        statuses=[reported({"memory": "1024Mi", "cpu": "2000m"}, {"cpu": "2"})],
    )
    specs = [decoder.object(POD, json.dumps(one).encode()).spec for one in (plain, same, other)]
    assert specs[0] is specs[1] is specs[2]


def test_a_snapshot_follows_a_resize() -> None:
    """A scale-down has its room until it is done."""
    snapshot = Snapshot()
    snapshot.put_node(read_node(node("n")))
    taken = []
    for actual in (CPU_4, CPU_4, CPU_2):
        wanted = CPU_4 if not taken else CPU_2
        obj = resized(container(wanted), statuses=[reported(actual, wanted)])
        snapshot.put_pod(read_pod(obj))
        view = snapshot.view()
        taken.append(view.requested_of(0, view.resources["cpu"]))
    assert taken == [4000, 4000, 2000]
