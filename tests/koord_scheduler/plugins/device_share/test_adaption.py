"""What device plugins of vendors read; the cases are those of spec 09, sections 13 and 19.12."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.allocation import GivenDevice
from koord.api.devices.layout import NodeDevices, read_devices
from koord.kube.transport import Call
from koord_scheduler.plugin import EventResource, QueueingHint
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_node, make_pod
from koord_scheduler_plugins.default_binding import DefaultPreBind
from koord_scheduler_plugins.device_share.adaption import (
    CannotAdapt,
    adaption,
    is_locked,
    lock_text,
)
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from tests.support.scheduler.devices import CORE, MEMORY, RATIO, d8, device_object, gpu

NOW = 1_750_000_000.5
NS = 1_750_000_000_500_000_000
BIND, MINORS = "scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors"


def on(vendor: str = "", model: str = "") -> NodeDevices:
    labels = {"node.koordinator.sh/gpu-vendor": vendor, "node.koordinator.sh/gpu-model": model}
    return read_devices(d8("n1", **{key: one for key, one in labels.items() if one}))


def card(minor: int = 0, template: str = "", **amounts: int) -> GivenDevice:
    names = {"core": CORE, "memory": MEMORY}
    return GivenDevice(minor, {names[key]: one for key, one in amounts.items()}, template=template)


@pytest.mark.parametrize(
    ("vendor", "model", "gpus", "annotations", "lock"),
    [
        ("other", "", (card(0), card(1)), {}, ""),
        (
            "huawei",
            "Ascend-310P3-300I-DUO",
            (card(0), card(1)),
            {"predicate-time": str(NS), "huawei.com/Ascend310P": "Ascend310P-0,Ascend310P-1"},
            "",
        ),
        (
            "huawei",
            "Ascend-310P",
            (card(0, "vir01"),),
            {"predicate-time": str(NS), "huawei.com/npu-core": "0-vir01"},
            "",
        ),
        (
            "huawei",
            "Ascend-310P",
            (card(0), card(1)),
            {"predicate-time": str(NS), "huawei.com/npu-core": "0,1"},
            "",
        ),
        (
            "cambricon",
            "",
            (card(0, core=5, memory=2**30),),
            {"CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": "0_5_4"},
            "cambricon.com/dsmlu.lock",
        ),
        (
            "metax",
            "",
            (card(0, core=5, memory=2**30),),
            {
                "metax-tech.com/gpu-devices-allocated": (
                    '[[{"uuid":"GPU-0","compute":5,"vRam":1024}]]'
                )
            },
            "hami.io/mutex.lock",
        ),
    ],
)
def test_annotations_by_vendor(vendor, model, gpus, annotations, lock):
    found = adaption({"gpu": gpus}, on(vendor, model), {}, NS)
    minors = ",".join(str(one.minor) for one in gpus)
    assert found.annotations == {BIND: str(NS), MINORS: minors, **annotations}
    assert (found.lock, found.labels) == (lock, {})


def test_a_pod_without_gpus_and_one_that_hami_isolates():
    assert adaption({"rdma": (card(1),)}, on(), {}, NS).annotations == {BIND: str(NS)}
    hami = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    assert adaption({"gpu": (card(1),)}, on(), hami, NS).labels == {"hami.io/vgpu-node": "n1"}


@pytest.mark.parametrize(
    ("vendor", "gpus", "text"),
    [
        ("cambricon", (card(0), card(1)), "multiple gpu share is not supported on device side"),
        ("cambricon", (card(memory=2**30),), "gpu core resource is required"),
        ("cambricon", (card(core=5, memory=1),), "must not be less than 268435456 bytes"),
        ("metax", (card(core=5, memory=1),), "must not be less than 1048576 bytes"),
    ],
)
def test_what_a_device_plugin_cannot_give(vendor, gpus, text):
    with pytest.raises(CannotAdapt, match=text):
        adaption({"gpu": gpus}, on(vendor), {}, NS)


@pytest.mark.parametrize(
    ("value", "exists", "locked"),
    [
        (lock_text(NOW - 60, "default", "a"), True, True),
        (lock_text(NOW - 60, "default", "a"), False, False),
        (lock_text(NOW - 301, "default", "a"), True, False),
    ],
)
def test_a_lock_counts_for_five_minutes_while_its_pod_is_there(value, exists, locked):
    assert is_locked(value, NOW, lambda key: exists and key == "default/a") is locked


@pytest.mark.parametrize("value", ["", "a,b", "now,default,a"])
def test_a_lock_that_is_none(value):
    with pytest.raises(CannotAdapt, match="invalid node lock value"):
        is_locked(value, NOW, lambda key: True)


@pytest.mark.parametrize("locked", [False, True])
async def test_the_node_is_locked_before_the_pod_is_bound(locked):
    """One patch of the version that was read; a node that is locked fails this attempt."""
    cluster = fake_cluster()
    cluster.node("d8")
    cluster.pod("other")
    held = {"hami.io/mutex.lock": lock_text(cluster.clock.wall(), "default", "other")}
    patches: dict[str, Any] = {}

    def api(call: Call):
        if call.method == "PATCH":
            patches[call.path] = json.loads(call.body or b"")
        return {"metadata": {"resourceVersion": "7", "annotations": held if locked else {}}}

    at = PluginHarness(DeviceShare, cluster, extra_plugins={"DefaultPreBind": DefaultPreBind})
    object.__setattr__(at, "services", replace(at.services, gates=lambda name: True))
    at.server.answer(api)
    labels = {"node.koordinator.sh/gpu-vendor": "metax"}
    at.informers.apply(DEVICE_OBJECTS, device_object("d8", [gpu(0)], labels=labels))
    resources = {CORE: "5", RATIO: "5"}
    spec = {"containers": [{"name": "main", "resources": {"requests": resources}}]}
    async with at:
        done = await at.schedule(make_pod("a", spec=spec))
    if locked:
        assert done.node is None
        assert 'node "d8" has been locked' in done.status.message
        assert patches == {}
        return
    assert done.node == "d8"
    lock = lock_text(cluster.clock.wall(), "default", "a")
    node, pod = patches["/api/v1/nodes/d8"], patches["/api/v1/namespaces/default/pods/a"]
    assert node == {
        "metadata": {"annotations": {"hami.io/mutex.lock": lock}, "resourceVersion": "7"}
    }
    assert {DEVICE_ALLOCATED, BIND, MINORS} < set(pod["metadata"]["annotations"])


METAX = "hami.io/mutex.lock"


@pytest.mark.parametrize(
    ("lock", "vendor", "gate", "status"),
    [
        ((60, "other"), "metax", True, "node(s) have been locked for another pod's devices"),
        ((301, "other"), "metax", True, ""),  # it is void
        ((60, "gone"), "metax", True, ""),
        ((60, "a"), "metax", True, ""),  # the pod's own, of an attempt that failed
        ((60, "other"), "nvidia", True, ""),  # nobody locks such nodes
        ((60, "other"), "metax", False, ""),
        ("nonsense", "metax", True, 'invalid node lock value "nonsense"'),
    ],
)
async def test_a_locked_node_is_not_chosen(lock, vendor, gate, status):
    """PreBind would fail there; another node is as good."""
    cluster = fake_cluster()
    at = PluginHarness(DeviceShare, cluster)
    object.__setattr__(at, "services", replace(at.services, gates=lambda name: gate))
    cluster.pod("other")
    text = lock
    if isinstance(lock, tuple):
        text = lock_text(cluster.clock.wall() - lock[0], "default", lock[1])
    for name, annotations in (("n1", {METAX: text}), ("n2", {})):
        meta = {"name": name, "annotations": annotations}
        amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        cluster.apply({"kind": "Node", "metadata": meta, "status": {"allocatable": amounts}})
        labels = {"node.koordinator.sh/gpu-vendor": vendor}
        at.informers.apply(DEVICE_OBJECTS, device_object(name, [gpu(0)], labels=labels))
    resources = {CORE: "5", RATIO: "5"}
    pod = make_pod(
        "a", spec={"containers": [{"name": "main", "resources": {"requests": resources}}]}
    )
    async with at:
        decided = at.decide(pod)
        assert decided.rejections == ({"n1": status} if status else {})
        assert decided.candidates == ()  # evictions would not help


async def test_a_lock_that_is_taken_away_has_pods_tried_again():
    at = PluginHarness(DeviceShare, fake_cluster())
    async with at:
        (hint,) = (
            one.hint
            for one in at.subject.events_to_register()
            if one.event.resource is EventResource.NODE
        )
        locked = msgspec.structs.replace(make_node("n1"), annotations=((METAX, "x"),))
        assert hint(make_pod("a"), locked, make_node("n1")) is QueueingHint.QUEUE
        assert hint(make_pod("a"), make_node("n1"), locked) is QueueingHint.SKIP
