"""DeviceShare as a profile has it: Filter, Score, Reserve, and what it writes."""

import json
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.allocation import GivenDevice
from koord.api.devices.requests import ALLOCATE_HINT, JOINT_ALLOCATE
from koord.plugin import InvalidObject
from koord.plugin.kube import OneObject
from koord_scheduler.plugin import (
    POD_DELETED,
    Action,
    ClusterEvent,
    Code,
    EventResource,
    NodeInfo,
)
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler.plugin.testing import (
    FakeCluster,
    PluginHarness,
    assert_forms_agree,
    fake_cluster,
    make_node,
    make_pod,
)
from koord_scheduler_plugins.device_share import tables
from koord_scheduler_plugins.device_share.allocated import allocated_text
from koord_scheduler_plugins.device_share.args import (
    MAX_AMOUNTS,
    MAX_MODELS,
    MAX_TEMPLATES,
    read_templates,
)
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from tests.support.scheduler.devices import (
    CORE,
    MEMORY,
    RATIO,
    RDMA_SHARE,
    d8,
    device_object,
    gpu,
    h8,
    nic,
)

HALF = {"koordinator.sh/gpu.shared": 1, CORE: 50, RATIO: 50}


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = fake_cluster()
    cluster.node("d8")
    return cluster


def harness(cluster: FakeCluster, *objects, **args) -> PluginHarness:
    """A profile with DeviceShare that knows some Device objects."""
    made = PluginHarness(DeviceShare, cluster, args=args)
    for each in objects:
        made.informers.apply(DEVICE_OBJECTS, each)
    return made


def spec(requests: dict[str, int]) -> dict:
    texts = {name: str(amount) for name, amount in requests.items()}
    return {"containers": [{"name": "main", "resources": {"requests": texts}}]}


def pod(name: str, requests: dict[str, int], **more):
    return make_pod(name, spec=spec(requests), **more)


async def answer(at: PluginHarness, name: str = "") -> Any:
    """What the REST endpoint says of a node; of all without a name."""
    assert isinstance(at.subject, DeviceShare)
    one, every = (endpoint.answer for endpoint in at.subject.endpoints())
    found: Any = await (one if name else every)(PluginRequest(parameters={"name": name}, query={}))
    return found


def given(cluster: FakeCluster, name: str) -> dict:
    found = cluster.state.pod(f"default/{name}")
    assert found is not None
    return json.loads(dict(found.annotations)[DEVICE_ALLOCATED])


def cards(cluster: FakeCluster, name: str) -> list[int]:
    return [one["minor"] for one in given(cluster, name)["gpu"]]


@pytest.mark.parametrize(
    ("requests", "memory", "written"),
    [
        (
            {"nvidia.com/gpu": 2, RDMA_SHARE: 100},
            2**34,
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100",'
            '"koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"100"},'
            '"id":"GPU-0"},{"minor":1,"resources":{"koordinator.sh/gpu-core":"100",'
            '"koordinator.sh/gpu-memory":"16Gi","koordinator.sh/gpu-memory-ratio":"100"},'
            '"id":"GPU-1"}],"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"100"},'
            '"id":"0000:01:00.0"}]}',
        ),
        (
            HALF,
            2**34,
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50",'
            '"koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"},'
            '"id":"GPU-0"}]}',
        ),
    ],
)
async def test_the_annotation_to_the_letter(cluster, requests, memory, written):
    """19.12: types and resources sorted, fields in the order of Go."""
    device = d8()
    for one in device["spec"]["devices"]:
        if one["type"] == "gpu":
            one["resources"][MEMORY] = str(memory)
    async with harness(cluster, device) as at:
        assert (await at.schedule(pod("p", requests))).node == "d8"
    found = cluster.state.pod("default/p")
    assert found is not None
    assert dict(found.annotations)[DEVICE_ALLOCATED] == written


def test_an_allocation_without_amounts_is_written_as_go_does():
    """19.12, for a virtual function that is left of an interface."""
    given = {"rdma": (GivenDevice(1, {}, ("0000:1f:00.2",)),), "gpu": (GivenDevice(0, {}),)}
    assert allocated_text(given, {("gpu", 0): "GPU-0"}) == (
        '{"gpu":[{"minor":0,"resources":null,"id":"GPU-0"}],'
        '"rdma":[{"minor":1,"resources":null,"extension":{"vfs":[{"busID":"0000:1f:00.2"}]}}]}'
    )


async def test_pods_one_after_the_other(cluster):
    """19.14: shares are spread, whole cards are near to each other and to those in use."""
    async with harness(cluster, d8()) as at:
        for name, requests in (
            ("a", HALF),
            ("b", HALF),
            ("c", {"nvidia.com/gpu": 1}),
            ("d", {"nvidia.com/gpu": 2}),
        ):
            assert (await at.schedule(pod(name, requests))).node == "d8"
        refused = await at.schedule(pod("e", {"nvidia.com/gpu": 4}))
        assert refused.status.message == ("0/1 nodes are available: 1 Insufficient GPU Devices.")
        assert (await at.schedule(pod("f", {CORE: 30, RATIO: 30}))).node == "d8"
        joint = {
            JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"]}',
            ALLOCATE_HINT: '{"rdma":{"vfSelector":{}}}',
        }
        both = pod("g", {"nvidia.com/gpu": 1, RDMA_SHARE: 1}, annotations=joint)
        assert (await at.schedule(both)).node == "d8"
    found = [cards(cluster, name) for name in "abcdfg"]
    assert found == [[0], [1], [2], [4, 5], [3], [6]]
    assert given(cluster, "a") == {
        "gpu": [
            {
                "minor": 0,
                "resources": {CORE: "50", MEMORY: "41600608Ki", RATIO: "50"},
                "id": "GPU-0",
            }
        ]
    }
    assert given(cluster, "g")["rdma"] == [
        {
            "minor": 4,
            "resources": {RDMA_SHARE: "1"},
            "id": "0000:04:00.0",
            "extension": {"vfs": [{"busID": "0000:b9:00.2"}]},
        }
    ]


async def test_the_annotation_is_written_as_koordinator_does(cluster):
    """19.12: keys sorted, fields in Go's order, memory in binary units."""
    resources = {CORE: "100", RATIO: "100", MEMORY: "16Gi"}
    found = d8()
    found["spec"]["devices"][:8] = [
        gpu(minor, numa=minor // 4, pcie=str(minor // 2), resources=resources) for minor in range(8)
    ]
    async with harness(cluster, found) as at:
        await at.schedule(pod("a", {"nvidia.com/gpu": 2, RDMA_SHARE: 100}))
    written = dict(cluster.state.pod("default/a").annotations)[DEVICE_ALLOCATED]
    card = (
        '"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"16Gi",'
        '"koordinator.sh/gpu-memory-ratio":"100"}'
    )
    assert written == (
        f'{{"gpu":[{{"minor":0,{card},"id":"GPU-0"}},{{"minor":1,{card},"id":"GPU-1"}}],'
        '"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"100"},"id":"0000:01:00.0"}]}'
    )


@pytest.mark.parametrize(
    ("objects", "requests", "rejection"),
    [
        ([], {CORE: 100, RATIO: 100}, None),
        ([device_object("d8", [])], {CORE: 100, RATIO: 100}, "Insufficient gpu devices"),
        ([device_object("d8", [gpu(0, health=False)])], {RATIO: 100}, "Insufficient gpu devices"),
        ([d8()], {"koordinator.sh/fpga": 100}, "Insufficient fpga devices"),
        ([d8()], {"nvidia.com/gpu": 8}, None),
        ([d8()], {"nvidia.com/gpu": 9}, "Insufficient GPU Devices"),
        ([d8()], {"koordinator.sh/gpu.shared": 1, "koordinator.sh/rdma": 100, RATIO: 1}, None),
    ],
)
async def test_filter(cluster, objects, requests, rejection):
    """19.9: nodes without a Device are left to the kubelet."""
    async with harness(cluster, *objects) as at:
        decided = at.decide(pod("a", requests))
        assert decided.rejections == ({} if rejection is None else {"d8": rejection})
        assert_forms_agree(at.subject, pod("a", requests), cluster.state.view())


async def test_nodes_without_a_device_can_be_left_out(cluster):
    async with harness(cluster, requireDevices=True) as at:
        assert at.decide(pod("a", HALF)).rejections == {"d8": "node(s) have no Device object"}
        assert at.decide(pod("b", {"cpu": 1})).node == "d8"


async def test_what_no_node_can_give_is_refused_before(cluster):
    async with harness(cluster, d8()) as at:
        decided = at.decide(pod("a", {CORE: 101, RATIO: 101}))
        assert decided.status.message == (
            "invalid resource device requests: "
            "[koordinator.sh/gpu-core koordinator.sh/gpu-memory-ratio]"
        )
        assert decided.candidates == ()


PROVIDER = "koordinator.sh/gpu-isolation-provider"


async def test_a_share_needs_the_isolation_that_the_pod_names():
    """21.1: the node is rejected, and the cycle goes on."""
    cluster = fake_cluster()
    cluster.node("plain")
    cluster.node("hami", labels={PROVIDER: "HAMi-core"})
    async with harness(cluster, d8("plain"), d8("hami")) as at:
        decided = at.decide(pod("a", HALF, labels={PROVIDER: "HAMi-core"}))
        assert decided.feasible == ("hami",)
        assert decided.rejections == {"plain": "GPUIsolationProviderHAMICore not found on the node"}


async def test_models_that_cannot_be_shared():
    labels = {
        "node.koordinator.sh/gpu-vendor": "huawei",
        "node.koordinator.sh/gpu-model": "Ascend-310P3-300I-DUO",
    }
    cluster = fake_cluster()
    cluster.node("d8", labels=labels)
    models = [{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]
    async with harness(cluster, d8(), gpuShareUnsupportedModels=models) as at:
        assert at.decide(pod("a", HALF)).rejections == {
            "d8": 'model "Ascend-310P3-300I-DUO" of vendor "huawei" does not support GPU Share'
        }
        assert at.decide(pod("b", {RATIO: 100})).node == "d8"


async def test_templates_of_npus():
    labels = {
        "node.koordinator.sh/gpu-vendor": "huawei",
        "node.koordinator.sh/gpu-model": "Ascend-310P",
    }
    cluster = fake_cluster()
    cluster.node("d8", labels=labels)
    npu = {MEMORY: str(24 * 2**30), RATIO: "100"}
    npu |= {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100"}
    vir01 = {
        MEMORY: "3Gi",
        "huawei.com/npu-core": 1,
        "huawei.com/npu-cpu": 1,
        "huawei.com/npu-dvpp": 12,
    }
    found = device_object("d8", [gpu(0, resources=npu)])
    templates = {"huawei-Ascend-310P": {"vir01": vir01}}
    async with harness(cluster, found, gpuSharedResourceTemplates=templates) as at:
        asks = {**vir01, MEMORY: 3 * 2**30, "koordinator.sh/gpu.shared": 1}
        assert (await at.schedule(pod("a", asks))).node == "d8"
        other = at.decide(pod("b", {**asks, "huawei.com/npu-dvpp": 13}))
        assert "no matched GPU shared resource template" in other.status.message
    [one] = given(cluster, "a")["gpu"]
    assert one["extension"] == {"gpuSharedResourceTemplate": "vir01"}


TEMPLATES = OneObject("v1", "configmaps", "koordinator-system", "gpu-shared-resource-templates")
VIR01 = {
    MEMORY: 3 * 2**30,
    "huawei.com/npu-core": 1,
    "huawei.com/npu-cpu": 1,
    "huawei.com/npu-dvpp": 12,
}
VIR02 = {**VIR01, MEMORY: 6 * 2**30, "huawei.com/npu-core": 2}


def templates(text: str | None, name: str = TEMPLATES.name) -> dict[str, Any]:
    """The ConfigMap with the templates."""
    meta = {"namespace": TEMPLATES.namespace, "name": name, "uid": f"uid-{name}"}
    return {"metadata": meta, "data": {} if text is None else {"data.yaml": text}}


def yaml_of(**every: dict[str, int]) -> str:
    lines = ["huawei-Ascend-310P:"]
    for name, amounts in every.items():
        lines += [f"  {name}:", *(f"    {key}: {value}" for key, value in amounts.items())]
    return "\n".join(lines)


@pytest.fixture
def npus(cluster: FakeCluster) -> Any:
    """A node with an NPU."""
    labels = {
        "node.koordinator.sh/gpu-vendor": "huawei",
        "node.koordinator.sh/gpu-model": "Ascend-310P",
    }
    cluster.node("d8", labels=labels)
    npu = {MEMORY: str(24 * 2**30), RATIO: "100"}
    npu |= {"huawei.com/npu-core": "8", "huawei.com/npu-cpu": "7", "huawei.com/npu-dvpp": "100"}
    return device_object("d8", [gpu(0, resources=npu)])


def share_of_npu(name: str, amounts: dict[str, int]) -> Any:
    return pod(name, {**amounts, "koordinator.sh/gpu.shared": 1})


async def test_templates_of_the_config_map(cluster, npus):
    """One that changes counts at once, a malformed one never, and without it there are none."""
    async with harness(cluster, npus) as at:

        def template_of(name: str, amounts: dict[str, int]) -> bool:
            return at.decide(share_of_npu(name, amounts)).node == "d8"

        assert not template_of("a", VIR01)
        at.informers.apply(TEMPLATES, templates(yaml_of(vir01=VIR01)))
        assert template_of("b", VIR01)
        assert not template_of("c", VIR02)
        at.informers.apply(TEMPLATES, templates(yaml_of(vir01=VIR01, vir02=VIR02)))
        assert template_of("d", VIR02)
        for bad in ("- a list", "huawei-Ascend-310P: {vir03: {x: many}}", "a: &b [*b]"):
            at.informers.apply(TEMPLATES, templates(bad))
            assert template_of(f"e{len(bad)}", VIR02)
        assert (await at.schedule(share_of_npu("f", VIR01))).node == "d8"
        at.informers.delete(TEMPLATES, f"{TEMPLATES.namespace}/{TEMPLATES.name}")
        assert not template_of("g", VIR02)
    [one] = given(cluster, "f")["gpu"]
    assert one["extension"] == {"gpuSharedResourceTemplate": "vir01"}


async def test_templates_of_the_arguments_come_before_those_of_the_config_map(cluster, npus):
    mine = {"huawei-Ascend-310P": {"mine": {name: str(each) for name, each in VIR01.items()}}}
    async with harness(cluster, npus, gpuSharedResourceTemplates=mine) as at:
        at.informers.apply(TEMPLATES, templates(yaml_of(vir01=VIR02)))
        assert at.decide(share_of_npu("a", VIR02)).node is None
        assert (await at.schedule(share_of_npu("b", VIR01))).node == "d8"
    [one] = given(cluster, "b")["gpu"]
    assert one["extension"] == {"gpuSharedResourceTemplate": "mine"}


async def test_templates_that_change_have_pods_tried_again(cluster, npus):
    async with harness(cluster, npus) as at:
        waits, other = share_of_npu("a", VIR01), pod("b", HALF)
        good = templates(yaml_of(vir01=VIR01))
        assert at.is_retried_by(waits, "DeviceShare", TEMPLATES, good)
        assert not at.is_retried_by(waits, "DeviceShare", TEMPLATES, good)
        assert not at.is_retried_by(other, "DeviceShare", TEMPLATES, templates(None))
        bad = templates("- x")
        assert not at.is_retried_by(waits, "DeviceShare", TEMPLATES, bad)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"m{at}: {{}}" for at in range(MAX_MODELS + 1)),
        "m:\n" + "\n".join(f"  t{at}: {{}}" for at in range(MAX_TEMPLATES + 1)),
        "m: {t: {" + ", ".join(f"r{at}: 1" for at in range(MAX_AMOUNTS + 1)) + "}}",
        f"{'m' * 300}: {{}}",
    ],
)
def test_too_many_templates_are_refused(text):
    with pytest.raises(InvalidObject, match="at most"):
        read_templates(templates(text), TEMPLATES.namespace, TEMPLATES.name)


def test_another_config_map_has_no_templates():
    """As in a dump, which has all of them."""
    found = templates("- no templates", name="other")
    assert read_templates(found, TEMPLATES.namespace, TEMPLATES.name) is None


@pytest.mark.parametrize(
    ("strategy", "expected"), [("LeastAllocated", "empty"), ("MostAllocated", "half")]
)
async def test_nodes_are_scored_by_what_is_requested_of_their_devices(strategy, expected):
    cluster = fake_cluster()
    cluster.node("empty")
    cluster.node("half")
    two = [gpu(0), gpu(1)]
    async with harness(
        cluster,
        device_object("empty", two),
        device_object("half", two),
        scoringStrategy={
            "type": strategy,
            "resources": [{"name": RATIO, "weight": 1}],
        },
    ) as at:
        cluster.pod("old", "half", spec=spec({RATIO: 100}), annotations=allocated(0))
        decided = at.decide(pod("a", HALF))
        assert decided.node == expected
        assert_forms_agree(at.subject, pod("a", HALF), cluster.state.view())


def allocated(*minors: int, percent: int = 100) -> dict[str, str]:
    """The annotation of a pod that has GPUs."""
    devices = [{"minor": one, "resources": {RATIO: str(percent)}} for one in minors]
    return {DEVICE_ALLOCATED: json.dumps({"gpu": devices})}


ONE = device_object("d8", [gpu(0)])


async def test_devices_of_pods_that_run_are_not_given_again(cluster):
    cluster.pod("old", "d8", spec=spec({RATIO: 100}), annotations=allocated(0))
    async with harness(cluster, ONE) as at:
        assert at.decide(pod("a", HALF)).rejections == {"d8": "Insufficient gpu devices"}
        cluster.pod(
            "old", "d8", spec=spec({RATIO: 100}), annotations=allocated(0), phase="Succeeded"
        )
        assert at.decide(pod("a", HALF)).node == "d8"


@pytest.mark.parametrize(
    ("requests", "annotations"),
    [
        ({}, allocated(0)),
        ({RATIO: 50}, allocated(0)),
        ({RATIO: 100}, allocated(0, 1)),
        ({RATIO: 100}, {DEVICE_ALLOCATED: "["}),
        ({RATIO: 100}, {DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":{"a":"-1"}}]}'}),
    ],
)
async def test_a_pod_has_no_more_than_its_containers_request(cluster, requests, annotations):
    """As the agent, which grants nothing of such an annotation."""
    cluster.pod("liar", "d8", spec=spec(requests), annotations=annotations)
    async with harness(cluster, ONE) as at:
        assert at.decide(pod("a", {RATIO: 100})).node == "d8"


async def test_an_annotation_of_the_author_means_nothing(cluster):
    """21.23: it neither blocks the pod, nor does it choose the devices."""
    async with harness(cluster, d8()) as at:
        for number, text in enumerate((allocated(0)[DEVICE_ALLOCATED], "[")):
            name = f"p{number}"
            one = pod(name, {RATIO: 100}, annotations={DEVICE_ALLOCATED: text})
            assert (await at.schedule(one)).node == "d8"
            assert cards(cluster, name) == [number]
        assert (await at.schedule(pod("c", {RATIO: 100}))).node == "d8"
        assert cards(cluster, "c") == [2]


async def test_the_annotation_is_removed_where_the_kubelet_gives_the_devices(cluster):
    async with harness(cluster) as at:
        one = pod("a", {RATIO: 100}, annotations=allocated(0))
        assert (await at.schedule(one)).node == "d8"
    assert DEVICE_ALLOCATED not in dict(cluster.state.pod("default/a").annotations)


async def test_devices_go_and_come_back_under_pods(cluster):
    """19.13: nothing is given twice while the object is away, unhealthy or shrunk."""
    async with harness(cluster, device_object("d8", [gpu(0), gpu(1)])) as at:
        await at.schedule(pod("a", {RATIO: 100}))
        at.informers.delete(DEVICE_OBJECTS, "d8")
        assert at.decide(pod("b", {RATIO: 100})).rejections == {"d8": "Insufficient gpu devices"}
        at.informers.apply(DEVICE_OBJECTS, device_object("d8", [gpu(0, health=False), gpu(1)]))
        assert at.decide(pod("b", {RATIO: 100})).node == "d8"
        at.informers.apply(DEVICE_OBJECTS, ONE)
        assert at.decide(pod("b", {RATIO: 100})).node is None
        at.informers.apply(DEVICE_OBJECTS, device_object("d8", [gpu(0), gpu(1)]))
        assert (await at.schedule(pod("b", {RATIO: 100}))).node == "d8"
    assert (cards(cluster, "a"), cards(cluster, "b")) == ([0], [1])


async def test_an_object_that_cannot_be_understood_gives_nothing(cluster):
    async with harness(cluster, device_object("d8", [gpu("x")])) as at:
        assert at.decide(pod("a", {RATIO: 100})).rejections == {"d8": "Insufficient gpu devices"}
        assert "minor" in at.services.custom_resources.health().reason
        at.informers.apply(DEVICE_OBJECTS, ONE)
        assert at.decide(pod("a", {RATIO: 100})).node == "d8"


async def test_a_pod_whose_binding_fails_gives_its_devices_back(cluster):
    async with harness(cluster, ONE) as at:
        done = await at.schedule(pod("a", {RATIO: 100}))
        assert done.node == "d8"
        cluster.delete("Pod", "default/a")
        assert (await at.schedule(pod("b", {RATIO: 100}))).node == "d8"


NODE_CHANGED = ClusterEvent(EventResource.NODE, Action.UPDATE_NODE_LABEL)


async def test_what_has_a_pod_tried_again(cluster):
    """21.17."""
    async with harness(cluster, ONE) as at:
        waits = pod("waits", {RATIO: 100})
        held = pod("a", {RATIO: 100}, annotations=allocated(0))
        assert at.is_retried_after(waits, POD_DELETED, held, None)
        assert not at.is_retried_after(waits, POD_DELETED, make_pod("b"), None)
        model = {"node.koordinator.sh/gpu-model": "H800"}
        old, new = make_node("d8"), make_node("d8", labels=model)
        assert at.is_retried_after(waits, NODE_CHANGED, old, new)
        assert not at.is_retried_after(waits, NODE_CHANGED, old, make_node("d8", labels={"a": "b"}))
        by = at.subject.name
        assert not at.is_retried_by(waits, by, DEVICE_OBJECTS, ONE)
        more = device_object("d8", [gpu(0), gpu(1)])
        assert at.is_retried_by(waits, by, DEVICE_OBJECTS, more)
        assert not at.is_retried_by(waits, by, DEVICE_OBJECTS, device_object("d8", [nic(1)]))
        assert not at.is_retried_by(waits, by, DEVICE_OBJECTS, deleted="d8")


async def test_the_forms_agree_on_nodes_of_all_kinds():
    cluster = fake_cluster()
    labels = {"node.koordinator.sh/gpu-model": "H800"}
    for name in ("d8", "h8", "none", "broken"):
        cluster.node(name, labels=labels if name == "h8" else {})
    objects = [d8(), h8(), device_object("broken", [gpu("x")])]
    async with harness(cluster, *objects) as at:
        cluster.pod("old", "d8", spec=spec({RATIO: 200}), annotations=allocated(0, 5))
        for requests in (HALF, {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 8}, {RDMA_SHARE: 1}):
            assert_forms_agree(at.subject, pod("a", requests), cluster.state.view())


async def test_why_a_pod_is_pending_is_said_in_words(cluster):
    async with harness(cluster, device_object("d8", [gpu(0), gpu(1), gpu(2)])) as at:
        subject = at.subject
        assert isinstance(subject, DeviceShare)
        for number in range(2):
            cluster.pod(
                f"s{number}",
                "d8",
                spec=spec({RATIO: 40}),
                annotations=allocated(number, percent=40),
            )
        [first, second] = subject.pending_advice(pod("a", {RATIO: 200}))
        assert first == (
            "2 devices of type gpu are requested: 1 would do on 1 nodes, at most 1 on one"
        )
        assert second.startswith("GPU memory is fragmented: cards in use have up to 60 percent")
        assert list(subject.pending_advice(pod("b", {"koordinator.sh/fpga": 1}))) == [
            "no node has a device of type fpga"
        ]
        assert list(subject.pending_advice(pod("c", {RATIO: 100}))) == []


async def test_cards_that_are_free_apart_from_each_other_are_named(cluster):
    async with harness(cluster, d8()) as at:
        subject = at.subject
        assert isinstance(subject, DeviceShare)
        cluster.pod("old", "d8", spec=spec({RATIO: 400}), annotations=allocated(0, 2, 4, 6))
        hint = {ALLOCATE_HINT: '{"gpu":{"requiredTopologyScope":"PCIe"}}'}
        assert list(subject.pending_advice(pod("a", {RATIO: 200}, annotations=hint))) == [
            "2 GPUs in one PCIe are requested: nodes have as many free, but at most 1 in one PCIe"
        ]


async def test_the_summary_of_a_node(cluster):
    async with harness(cluster, device_object("d8", [gpu(0), nic(1)])) as at:
        await at.schedule(pod("a", {RATIO: 50}))
        found = await answer(at, "d8")
        assert found["deviceTotal"] == {
            CORE: "100",
            MEMORY: "83201216Ki",
            RATIO: "100",
            RDMA_SHARE: "100",
        }
        assert found["deviceFree"][RATIO] == "50"
        assert found["deviceUsedDetail"] == {"gpu": {"0": {MEMORY: "41600608Ki", RATIO: "50"}}}
        assert found["allocateSet"] == {
            "gpu": {"default/a": {"0": {MEMORY: "41600608Ki", RATIO: "50"}}}
        }
        assert list(await answer(at)) == ["d8"]
        with pytest.raises(LookupError, match="cannot find node n2"):
            await answer(at, "n2")


async def test_secondary_devices_that_are_not_well_planned_are_counted(cluster):
    planned = "node.koordinator.sh/secondary-device-well-planned"
    metric = "scheduler_secondary_device_not_well_planned"
    async with harness(cluster, device_object("d8", [gpu(0)], labels={planned: "false"})) as at:
        assert at.metric(metric, node_name="d8") == 1
        at.informers.apply(DEVICE_OBJECTS, ONE)
        assert at.metric(metric, node_name="d8") is None


@pytest.mark.parametrize(
    "args",
    [
        {"scoringStrategy": {"type": "Other", "resources": []}},
        {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "a", "weight": 101}]}},
        {"gpuSharedResourceTemplates": {"a-b": {"t": {"c": "many"}}}},
    ],
)
def test_bad_args(args):
    with pytest.raises(Exception, match=r"is not supported|not in valid range|not a quantity"):
        PluginHarness(DeviceShare, args=args)


async def test_the_parts_of_a_node(cluster):
    """NUMA node and switch of each device, who has it, and how much."""
    found = d8()
    found["spec"]["devices"][7]["health"] = False
    async with harness(cluster, found) as at:
        await at.schedule(pod("whole", {"nvidia.com/gpu": 2}))
        await at.schedule(pod("part", {RATIO: 30, CORE: 30}))
        parts = list(at.subject.node_parts(NodeInfo(cluster.state.view(), 0)))
    assert [one.name for one in parts if one.used == 1] == ["gpu 0", "gpu 1"]
    (part,) = (one for one in parts if 0 < one.used < 1)
    assert (part.pods, part.used) == (("default/part",), pytest.approx(0.3))
    assert parts[2].place == ("gpu", "NUMA node 0", "PCIe 1")
    assert parts[7].note == "not healthy"
    assert [one.name for one in parts[8:]] == [f"rdma {minor}" for minor in range(1, 5)]


async def test_metrics_of_all_nodes_together(cluster):
    """Totals, what is free, cards that are given in part, and those that are not healthy."""
    found = d8()
    found["spec"]["devices"][7]["health"] = False
    cluster.node("other")
    async with harness(cluster, found, d8("other")) as at:
        await at.schedule(pod("whole", {"nvidia.com/gpu": 2}))
        await at.schedule(pod("part", {RATIO: 30, CORE: 30}))
        assert at.decide(pod("next", {"nvidia.com/gpu": 1})).node is not None
        values = {
            (sample.name.removeprefix("scheduler_deviceshare_"), *sample.labels.values()): (
                sample.value
            )
            for family in at.subject.metrics.collect()
            for sample in family.samples
        }
    assert values["total", "gpu", RATIO] == 1500
    assert values["free", "gpu", RATIO] == 1500 - 230
    assert (values["unhealthy", "gpu"], values["unhealthy", "rdma"]) == (1, 0)
    assert values["fragmented", "gpu"] == 1


async def test_metrics_follow_when_no_pod_requests_devices(cluster):
    """At most every five seconds."""
    async with harness(cluster, d8()) as at:
        await at.schedule(pod("a", {"nvidia.com/gpu": 8}))
        at.decide(pod("b", {"nvidia.com/gpu": 1}))

        def free() -> float:
            (family,) = (one for one in at.subject.metrics.collect() if one.name.endswith("free"))
            return {one.labels["resource"]: one.value for one in family.samples}[RATIO]

        assert free() == 0
        cluster.delete("Pod", "default/a")
        cluster.clock.advance(6)
        at.decide(pod("plain", {"cpu": 1}))
        assert free() == 800


async def test_tables_of_the_past_are_forgotten(cluster, monkeypatch):
    """With them what was said of them."""
    monkeypatch.setattr(tables, "MIN_TABLES", 3)
    async with harness(cluster, d8()) as at:
        for number in range(12):
            await at.schedule(pod(f"p{number}", {RATIO: 10, CORE: 10}))
        plugin = at.subject
        known = [each for one in plugin._verdicts._kept.values() for each in one]
        assert len(known) <= 6
        assert plugin.tables.epoch >= 1


HINT = "scheduling.koordinator.sh/scheduling-hint"


def comes_with(*minors: int, hint: str = '{"extensions":{"DeviceShare":{}}}') -> dict[str, str]:
    """The annotations of a pod that names its cards."""
    cards = [{"minor": minor, "resources": {RATIO: "100", CORE: "100"}} for minor in minors]
    return {DEVICE_ALLOCATED: json.dumps({"gpu": cards}), HINT: hint}


@pytest.mark.parametrize(
    ("minors", "hint", "wanted"),
    [
        ((4, 6), '{"extensions":{"DeviceShare":{}}}', [4, 6]),
        ((4, 6), '{"extensions":{"NodeNUMAResource":{}}}', [2, 3]),  # for another plugin
        ((4, 6), "{}", [2, 3]),
        ((0, 6), '{"extensions":{"DeviceShare":{}}}', None),  # it is in use
        ((4,), '{"extensions":{"DeviceShare":{}}}', None),  # one is not enough
        ((4, 99), '{"extensions":{"DeviceShare":{}}}', None),
    ],
)
async def test_devices_that_a_pod_comes_with(cluster, minors, hint, wanted):
    """It gets these, or none; what-ifs of a nominated pod say the same."""
    async with harness(cluster, d8()) as at:
        await at.schedule(pod("other", {"nvidia.com/gpu": 1}))
        new = pod("new", {"nvidia.com/gpu": 2}, annotations=comes_with(*minors, hint=hint))
        done = await at.schedule(new)
        if wanted is None:
            assert done.node is None
            assert "nsufficient" in done.status.message
        else:
            assert cards(cluster, "new") == wanted


async def test_functions_that_a_pod_comes_with(cluster):
    """Not the first one that is free."""
    address = "0000:90:00.7"
    given = [
        {
            "minor": 2,
            "resources": {RDMA_SHARE: "1"},
            "extension": {"vfs": [{"busID": address}]},
        }
    ]
    annotations = {
        DEVICE_ALLOCATED: json.dumps({"rdma": given}),
        HINT: '{"extensions":{"DeviceShare":{}}}',
        ALLOCATE_HINT: '{"rdma":{"vfSelector":{}}}',
    }
    async with harness(cluster, d8()) as at:
        await at.schedule(pod("new", {RDMA_SHARE: 1}, annotations=annotations))
    (one,) = given_ = json.loads(
        dict(cluster.state.pod("default/new").annotations)[DEVICE_ALLOCATED]
    )["rdma"]
    assert (one["minor"], one["extension"]["vfs"]) == (2, [{"busID": address}])
    assert len(given_) == 1


@pytest.mark.parametrize("part", [DEVICE_ALLOCATED, HINT])
async def test_a_designation_that_cannot_be_read(cluster, part):
    async with harness(cluster, d8()) as at:
        annotations = {**comes_with(4), part: "{"}
        decided = at.decide(pod("new", {"nvidia.com/gpu": 1}, annotations=annotations))
        assert decided.node is None
        assert decided.status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
