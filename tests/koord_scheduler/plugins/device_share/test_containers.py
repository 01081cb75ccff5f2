"""Devices by container: what the scheduler writes, and what the agent then shows to each."""

import json
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED, device_allocations, devices_of_container
from koord.api.devices.requests import ALLOCATE_HINT
from koord.api.pod import parse_pod
from koord.plugin import InvalidObject
from koord.plugin.kube import EventType
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koordlet.rules.allocated_devices import gpu_environment
from koordlet.rules.allocations import pod_allocation
from koordlet.rules.device_requests import device_shares
from koordlet.rules.devices import Gpu, GpuSet, XpuSet, node_devices
from tests.support.scheduler.devices import CARD, CORE, MEMORY, RATIO, RDMA_SHARE, d8

GPU, PERCENT, SHARED = "nvidia.com/gpu", "koordinator.sh/gpu", "koordinator.sh/gpu.shared"
OWN = '{"gpu":{"perContainer":true},"rdma":{"perContainer":true}}'
HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
NODE = node_devices(
    GpuSet(
        "550",
        tuple(
            Gpu(uuid=f"GPU-{minor}", minor=minor, model="H800", memory=CARD) for minor in range(8)
        ),
    ),
    XpuSet(),
    (),
)
HALF = {SHARED: 1, CORE: 50, RATIO: 50}
Requests = dict[str, dict[str, int]]


def spec(containers: Requests, init: Requests, sidecars: Requests) -> dict[str, Any]:
    def made(every: Requests, **more: str) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "resources": {
                    "requests": (texts := {key: str(amount) for key, amount in each.items()}),
                    "limits": texts,
                },
                **more,
            }
            for name, each in every.items()
        ]

    first = made(sidecars, restartPolicy="Always") + made(init)
    return {"containers": made(containers), **({"initContainers": first} if first else {})}


async def place(
    containers: Requests,
    *,
    init: Requests | None = None,
    sidecars: Requests | None = None,
    hint: str = OWN,
    labels: dict[str, str] | None = None,
) -> tuple[dict[str, Any], str]:
    """Return the pod as it is bound, and why it has no node; "": it has one."""
    cluster = fake_cluster()
    cluster.node("d8", labels=HAMI)
    harness = PluginHarness(DeviceShare, cluster)
    harness.informers.apply(DEVICE_OBJECTS, d8())
    made = spec(containers, init or {}, sidecars or {})
    async with harness:
        pod = make_pod(
            "p",
            spec=made,
            annotations={ALLOCATE_HINT: hint},
            labels=labels or {},
            containers=True,
        )
        done = await harness.schedule(pod)
    if done.node is None:
        return {}, done.status.message
    written = cluster.state.pod("default/p")
    assert written is not None
    metadata = {"name": "p", "uid": "u", "labels": labels or {}}
    return {
        "metadata": {**metadata, "annotations": dict(written.annotations)},
        "spec": {**made, "nodeName": "d8"},
    }, ""


def minors_by_container(pod: dict[str, Any], kind: str = "gpu") -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in json.loads(pod["metadata"]["annotations"][DEVICE_ALLOCATED])[kind]:
        for name in one.get("containers", {}):
            found.setdefault(name, []).append(one["minor"])
    return found


@pytest.mark.parametrize(
    ("containers", "init", "sidecars", "wanted"),
    [
        ({"a": {GPU: 1}, "b": {GPU: 1}}, {}, {}, {"a": [0], "b": [1]}),
        ({"a": {GPU: 1}, "log": {}}, {}, {}, {"a": [0]}),
        ({"a": {GPU: 1}, "b": {GPU: 2}}, {}, {}, {"b": [0, 1], "a": [2]}),  # two of one switch
        ({"a": HALF, "b": HALF}, {}, {}, {"a": [0], "b": [1]}),
        ({"a": {PERCENT: 50}, "b": {PERCENT: 50}}, {}, {}, {"a": [0], "b": [0]}),
        ({"a": {PERCENT: 60}, "b": {PERCENT: 100}, "c": {PERCENT: 40}}, {}, {},
         {"b": [0], "a": [1], "c": [1]}),
        # an init container has ended when the others start, a sidecar has not
        ({"a": {GPU: 1}, "b": {GPU: 1}}, {"load": {GPU: 2}}, {},
         {"load": [0, 1], "a": [0], "b": [1]}),
        ({"a": {GPU: 1}}, {"load": {GPU: 1}}, {"side": {GPU: 1}},
         {"side": [0], "load": [1], "a": [1]}),
    ],
)  # fmt: skip
async def test_each_container_has_its_own_cards(containers, init, sidecars, wanted):
    pod, _ = await place(containers, init=init, sidecars=sidecars)

    assert minors_by_container(pod) == wanted


async def test_parts_of_one_card_add_up_to_it():
    pod, _ = await place({"a": {PERCENT: 70}, "b": {PERCENT: 30}})

    [card] = json.loads(pod["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
    assert card["resources"] == {CORE: "100", MEMORY: f"{CARD // 1024}Ki", RATIO: "100"}
    assert card["containers"] == {
        "a": {CORE: "70", MEMORY: str(CARD * 70 // 100), RATIO: "70"},
        "b": {CORE: "30", MEMORY: str(CARD * 30 // 100), RATIO: "30"},
    }


async def test_without_the_hint_nothing_is_written_of_containers():
    pod, _ = await place({"a": {GPU: 1}, "b": {GPU: 1}}, hint="{}")

    given = json.loads(pod["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
    assert [set(one) for one in given] == [{"minor", "resources", "id"}] * 2


@pytest.mark.parametrize(
    ("containers", "hint", "wanted"),
    [
        ({"a": {RDMA_SHARE: 100}, "b": {RDMA_SHARE: 100}}, OWN, {"a": [1], "b": [2]}),
        ({"a": {RDMA_SHARE: 40}, "b": {RDMA_SHARE: 60}}, OWN, {"a": [1], "b": [1]}),
        (
            {"a": {RDMA_SHARE: 1}, "b": {RDMA_SHARE: 2}},
            '{"rdma":{"perContainer":true,"allocateStrategy":"RequestsAsCount"}}',
            {"b": [1, 2], "a": [3]},
        ),
        (
            {"a": {RDMA_SHARE: 1}, "b": {RDMA_SHARE: 1}, "log": {}},
            '{"rdma":{"perContainer":true,"allocateStrategy":"ApplyForAll"}}',
            {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4]},
        ),
    ],
)
async def test_interfaces_by_container(containers, hint, wanted):
    pod, _ = await place(containers, hint=hint)

    assert minors_by_container(pod, "rdma") == wanted


@pytest.mark.parametrize(
    ("containers", "reason"),
    [
        ({"a": {PERCENT: 70}, "b": {PERCENT: 70}, "c": {PERCENT: 60}}, "do not divide 2 GPUs"),
        ({"a": {PERCENT: 150}, "b": {PERCENT: 50}}, "container a: invalid resource unit"),
    ],
)
async def test_requests_that_cards_cannot_be_divided_by_are_rejected(containers, reason):
    _, message = await place(containers)

    assert "invalid" in message
    assert reason in message


async def test_the_agent_shows_each_container_its_own():
    """And limits it to its part of a card; what a sidecar does not request it does not see."""
    found, _ = await place({"a": {PERCENT: 70}, "b": {PERCENT: 30}, "log": {}}, labels=HAMI)
    pod = parse_pod(found)
    limits = {
        name: gpu_environment(pod, name, NODE, "/lib/vgpu.so", monitored=False).env
        for name in ("a", "b", "log")
    }
    assert pod_allocation(pod).refused == ()
    assert {name: env["NVIDIA_VISIBLE_DEVICES"] for name, env in limits.items()} == {
        "a": "0", "b": "0", "log": "void",
    }  # fmt: skip
    assert [limits[name].get("CUDA_DEVICE_SM_LIMIT") for name in limits] == ["70", "30", None]
    assert limits["b"]["CUDA_DEVICE_MEMORY_LIMIT"] == str(CARD * 30 // 100)


async def test_readers_that_do_not_know_containers_read_what_the_pod_has():
    """As Koordinator does, whose reader takes lists of devices by type and no other value."""
    own, _ = await place({"a": {GPU: 1}, "b": {GPU: 1}})
    shared, _ = await place({"a": {GPU: 1}, "b": {GPU: 1}}, hint="{}")
    texts = [one["metadata"]["annotations"][DEVICE_ALLOCATED] for one in (own, shared)]
    known = ("minor", "resources", "id", "extension")
    plain = [
        {
            kind: [{key: one[key] for key in known if key in one} for one in devices]
            for kind, devices in json.loads(text).items()
        }
        for text in texts
    ]
    assert plain[0] == plain[1]
    assert [device_shares(parse_pod(own), text) for text in texts] == [
        {("gpu", "0"): 100, ("gpu", "1"): 100}
    ] * 2


@pytest.mark.parametrize("amount", ["51", "-1"])
def test_a_container_has_no_more_of_a_device_than_its_pod(amount):
    text = json.dumps(
        {"gpu": [{"minor": 0, "resources": {CORE: "50"}, "containers": {"a": {CORE: amount}}}]}
    )
    with pytest.raises(InvalidObject, match="0 to 50, as the pod has"):
        device_allocations(text)


def test_all_containers_see_what_is_not_given_to_one():
    text = '{"gpu":[{"minor":3,"resources":null},{"minor":4,"resources":null,"containers":null}]}'
    devices = device_allocations(text)["gpu"]

    assert [one.minor for one in devices_of_container(devices, "any")] == [3, 4]


@pytest.mark.parametrize(
    ("second", "labels", "whole", "events"),
    [
        (HALF, {}, False, 1),
        (HALF, HAMI, False, 0),
        ({GPU: 1}, {}, False, 0),
        (HALF, {}, True, 0),  # the only one on its card
    ],
)
async def test_a_share_that_nothing_isolates_is_reported(second, labels, whole, events):
    cluster = fake_cluster()
    cluster.node("d8", labels=HAMI)
    args = {"scoringStrategy": {"type": "LeastAllocated" if whole else "MostAllocated"}}
    harness = PluginHarness(DeviceShare, cluster, args=args)
    harness.informers.apply(DEVICE_OBJECTS, d8())
    async with harness:
        for name, requests, more in (("first", HALF, HAMI), ("second", second, labels)):
            pod = make_pod(name, spec=spec({"main": requests}, {}, {}), labels=more)
            assert (await harness.schedule(pod)).node == "d8"
        found = [one for one in harness.events if one.reason == "GPUNotIsolated"]
    assert [(one.about.name, one.type) for one in found] == [("second", EventType.WARNING)] * events
    for one in found:
        assert "GPU 0 of node d8 is shared with 1 other pods" in one.message
