"""A pod's requests, by Kubernetes' and Koordinator's rules."""

import pytest

from koord.api.pod import (
    BATCH_CPU,
    MID_MEMORY,
    Container,
    Pod,
    cpu_resource,
    memory_resource,
    pod_request,
)
from koord.api.qos import KoordPriorityClass


def asks(name: str, restart: str = "", **requests: str) -> Container:
    return Container(name, requests, restart_policy=restart)


def pod(*containers: Container, init: tuple[Container, ...] = (), **fields) -> Pod:
    return Pod("jobs", "a", "u", containers=containers, init_containers=init, **fields)


@pytest.mark.parametrize(
    ("found", "milli"),
    [
        (pod(asks("a", cpu="1500m"), asks("b", cpu="1")), 2500),
        (pod(asks("a", cpu="1"), init=(asks("i", cpu="3"),)), 3000),
        (pod(asks("a", cpu="1"), init=(asks("s", "Always", cpu="2"),)), 3000),
        (pod(asks("a", cpu="1"), init=(asks("s", "Always", cpu="2"), asks("i", cpu="4"))), 6000),
        (pod(asks("a", cpu="1"), init=(asks("i", cpu="4"), asks("s", "Always", cpu="2"))), 4000),
        (pod(asks("a", cpu="1"), overhead={"cpu": "250m"}), 1250),
        (pod(asks("a", cpu="1"), requests={"cpu": "5"}, overhead={"cpu": "250m"}), 5250),
        (pod(asks("a", cpu="0.0001")), 1),
        (pod(asks("a")), 0),
    ],
)
def test_cpu_of_a_pod(found, milli):
    """Init containers come one by one, sidecars stay, the pod's own request comes first."""
    assert pod_request(found, "cpu") == milli


def test_extended_resources_are_summed():
    """Regular containers and sidecars, nothing below zero, and batch CPU is in milli-cores."""
    batch = {BATCH_CPU: "1000", MID_MEMORY: "1Ki"}
    found = pod(
        Container("a", batch),
        Container("b", {BATCH_CPU: "-5"}),
        init=(Container("s", batch, restart_policy="Always"), Container("i", {BATCH_CPU: "9k"})),
    )
    assert pod_request(found, BATCH_CPU) == 2000
    assert pod_request(found, MID_MEMORY) == 2048


@pytest.mark.parametrize(
    ("texts", "milli"),
    [(["1000", "500"], 1500), (["0"], 0), (["-5"], 0), ([""], 0), (["1k"], 1000)],
)
def test_batch_cpu_is_a_plain_number_of_milli_cores(texts, milli):
    """Missing and non-positive requests count nothing."""
    requests = [{BATCH_CPU: text} if text else {} for text in texts]
    assert pod_request(pod(*(Container("c", r) for r in requests)), BATCH_CPU) == milli


def test_tiers_have_resources_of_their_own():
    """Only batch and mid; all others ask for what Kubernetes has."""
    tiers = {tier: (cpu_resource(tier), memory_resource(tier)) for tier in KoordPriorityClass}
    native = ("cpu", "memory")
    assert tiers.pop(KoordPriorityClass.BATCH) == (
        "kubernetes.io/batch-cpu",
        "kubernetes.io/batch-memory",
    )
    assert tiers.pop(KoordPriorityClass.MID) == (
        "kubernetes.io/mid-cpu",
        "kubernetes.io/mid-memory",
    )
    assert set(tiers.values()) == {native}
