"""Nodes for a pod's volumes: bound, to be bound, to be made."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.framework.status import Code
from koord_scheduler.plugin import QueueingHint
from koord_scheduler.plugin.storage import CLAIM, CSI_DRIVER, STORAGE_CAPACITY, STORAGE_CLASS
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.volume_binding import VolumeBinding
from koord_scheduler_plugins.volume_binding.podvolumes import ShapePoint, VolumeBindingArgs
from tests.support.scheduler.volumes import DRIVER, FAST, Storage

FAR = "node(s) didn't match PersistentVolume's node affinity"
NONE = "node(s) didn't find available persistent volumes to bind"
SPACE = "node(s) did not have enough free storage"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def made(storage: Storage, **args: Any) -> VolumeBinding:
    plugin = VolumeBinding(VolumeBindingArgs(**args), storage.handle())
    plugin.name = "VolumeBinding"
    return plugin


def three_zones() -> Storage:
    """Nodes na, nb and nc in zones a, b and c, and a class that waits."""
    storage = Storage()
    for zone in "abc":
        storage.node(f"n{zone}", zone=zone)
    storage.storage_class()
    return storage


async def feasible(storage: Storage, plugin: VolumeBinding, *claims: str) -> tuple[str, str]:
    """The zones of the nodes that fit, and, if there are none, why."""
    pod = storage.wanted(*claims)
    found = await storage.search(plugin, pod)
    if storage.pre_filter(plugin, pod).ok:
        assert_forms_agree(plugin, pod, storage.view())
    view = storage.view()
    zones = [view.node(row).name[1:] for row in range(len(view)) if found.feasible[row]]
    return "".join(sorted(zones)), "" if zones else found.diagnosis.message()


def refused(words: str, *, nodes: int = 3) -> tuple[str, str]:
    return "", f"0/3 nodes are available: {nodes} {words}."


async def test_bound_claims_are_where_their_volumes_are() -> None:
    """All of them; one whose volume has gone is nowhere."""
    storage = three_zones()
    plugin = made(storage)
    storage.volume("ab", "a", "b")
    storage.volume("bc", "b", "c")
    storage.volume("every")
    storage.volume("c", "c")
    for name in ("ab", "bc", "every", "c", "gone"):
        storage.claim(f"in-{name}", name)
    assert await feasible(storage, plugin, "in-ab") == ("ab", "")
    assert await feasible(storage, plugin, "in-every") == ("abc", "")
    assert await feasible(storage, plugin, "in-ab", "in-bc") == ("b", "")
    assert await feasible(storage, plugin, "in-ab", "in-c") == refused(FAR)
    assert await feasible(storage, plugin, "in-gone") == refused(GONE)
    _, why = await feasible(storage, plugin, "in-c", "in-gone")
    assert why == f"0/3 nodes are available: 1 {GONE}, 2 {FAR}."


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (None, 'persistentvolumeclaim "data" not found'),
        (
            {"phase": "Lost", "volume": "pv"},
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pv"',
        ),
        (
            {"meta": {"deletionTimestamp": "2026-07-24T06:52:45Z"}},
            'persistentvolumeclaim "data" is being deleted',
        ),
        ({"cls": ""}, "pod has unbound immediate PersistentVolumeClaims"),
        ({"cls": "unknown"}, "pod has unbound immediate PersistentVolumeClaims"),
        ({"cls": "now"}, "pod has unbound immediate PersistentVolumeClaims"),
        (
            {"volume": "pv", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "",
        ),
        ({"volumeName": "pv"}, "pod has unbound immediate PersistentVolumeClaims"),
    ],
)
def test_a_claim_that_no_node_helps(claim: dict[str, Any] | None, message: str) -> None:
    """Kubernetes' words; preemption would not help."""
    storage = three_zones()
    storage.storage_class("now", mode="Immediate")
    storage.volume("pv")
    if claim is not None:
        storage.claim("data", **claim)
    status = storage.pre_filter(made(storage), storage.wanted("data"))
    assert status.message == message
    assert status.code is (Code.UNSCHEDULABLE_AND_UNRESOLVABLE if message else Code.SUCCESS)


def test_a_class_without_a_mode_is_an_error() -> None:
    storage = three_zones()
    storage.storage_class(mode=None)
    storage.claim("data")
    status = storage.pre_filter(made(storage), storage.wanted("data"))
    assert (status.code, status.message) == (
        Code.ERROR,
        'VolumeBindingMode not set for StorageClass "fast"',
    )


def test_ephemeral_volumes_are_the_pods_own() -> None:
    """Their claims come a moment after the pod; one of another's making is not used."""
    storage = three_zones()
    plugin, pod = made(storage), storage.wanted(ephemeral=["scratch"])
    wanted = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "'
    assert storage.pre_filter(plugin, pod).message == f'{wanted}web-scratch"'
    storage.claim("web-scratch")
    words = "PVC default/web-scratch was not created for pod default/web (pod is not owner)"
    assert storage.pre_filter(plugin, pod).message == words
    owner = {"kind": "Pod", "name": "web", "uid": pod.uid, "controller": True}
    storage.claim("web-scratch", meta={"ownerReferences": [owner]})
    assert storage.pre_filter(plugin, pod).ok
    assert storage.pre_filter(plugin, storage.wanted()).code is Code.SKIP


@pytest.mark.parametrize(
    ("volume", "claim", "fits"),
    [
        ({}, {}, True),
        ({"size": "512Mi"}, {}, False),
        ({"size": "2Gi"}, {}, True),
        ({}, {"size": None}, True),
        ({"phase": "Released"}, {}, False),
        ({"cls": "slow"}, {}, False),
        ({"volumeMode": "Block"}, {}, False),
        ({"volumeMode": "Block"}, {"volumeMode": "Block"}, True),
        ({"volumeMode": "Filesystem"}, {}, True),
        ({"accessModes": ["ReadWriteOnce"]}, {"accessModes": ["ReadWriteOnce"]}, True),
        ({"accessModes": ["ReadOnlyMany"]}, {"accessModes": ["ReadWriteOnce"]}, False),
        ({"labels": {"a": "b"}}, {"selector": {"matchLabels": {"a": "b"}}}, True),
        ({"labels": {"a": "c"}}, {"selector": {"matchLabels": {"a": "b"}}}, False),
        ({"volumeAttributesClassName": "gold"}, {}, False),
        ({"meta": {"deletionTimestamp": "2026-07-24T06:52:45Z"}}, {}, False),
        ({"claimRef": {"namespace": "default", "name": "other"}}, {}, False),
        ({"claimRef": {"namespace": "default", "name": "data"}}, {}, True),
        ({"claimRef": {"namespace": "default", "name": "data", "uid": "x"}}, {}, False),
        (
            {"claimRef": {"namespace": "default", "name": "data"}, "phase": "Pending"},
            {},
            True,
        ),
    ],
)
async def test_a_volume_that_would_do_for_a_claim(
    volume: dict[str, Any], claim: dict[str, Any], fits: bool
) -> None:
    """One that is kept for the claim needs not be available."""
    storage = three_zones()
    storage.storage_class(provisioner="kubernetes.io/no-provisioner")
    storage.volume("pv", "b", **volume)
    storage.claim("data", **claim)
    found = await feasible(storage, made(storage), "data")
    assert found == (("b", "") if fits else refused(NONE))


async def test_a_volume_that_is_kept_for_the_claim_is_the_only_one() -> None:
    """Though a smaller one is nearer."""
    storage = three_zones()
    storage.storage_class(provisioner="")
    storage.volume("kept", "c", size="9Gi", claimRef={"namespace": "default", "name": "data"})
    storage.volume("small", "a")
    storage.claim("data")
    assert await feasible(storage, made(storage), "data") == ("c", "")


async def test_each_claim_needs_a_volume_of_its_own() -> None:
    """The claim that wants least takes the smallest."""
    storage = three_zones()
    storage.storage_class(provisioner="")
    storage.volume("a-small", "a")
    storage.volume("a-large", "a", size="5Gi")
    storage.volume("b-small", "b")
    storage.volume("c-large", "c", size="5Gi")
    storage.volume("everywhere", size="3Gi")
    storage.claim("large", size="4Gi")
    storage.claim("small")
    plugin = made(storage)
    assert await feasible(storage, plugin, "large", "small") == ("ac", "")
    storage.claim("middle", size="2Gi")
    assert await feasible(storage, plugin, "large", "small", "middle") == ("a", "")


async def test_volumes_are_made_where_the_class_allows() -> None:
    """Where there is none yet; a class without a provisioner makes none."""
    storage = three_zones()
    storage.storage_class(FAST, "a", "b")
    storage.claim("data")
    plugin = made(storage)
    assert await feasible(storage, plugin, "data") == ("ab", "")
    storage.volume("pv", "c")
    assert await feasible(storage, plugin, "data") == ("abc", "")
    storage.storage_class(FAST, "a", "b", provisioner="kubernetes.io/no-provisioner")
    assert await feasible(storage, plugin, "data") == ("c", "")
    storage.volume("pv", "c", phase="Failed")
    assert await feasible(storage, plugin, "data") == refused(NONE)


@pytest.mark.parametrize(
    ("capacities", "zones"),
    [
        ([], ""),
        ([("a", "1Gi", None)], "a"),
        ([("a", "1Gi", "512Mi"), ("b", "1Mi", "1Gi")], "b"),
        ([("a", None, None), (None, "1Gi", None)], ""),
        ([("a", "1Gi", None), ("c", "1Ti", None)], "ac"),
    ],
)
async def test_drivers_that_say_what_they_have_left(
    capacities: list[tuple[str | None, str | None, str | None]], zones: str
) -> None:
    """The largest volume counts for more than the capacity; without nodes it is unreachable."""
    storage = three_zones()
    storage.csi_driver()
    storage.claim("data")
    for at, (zone, capacity, largest) in enumerate(capacities):
        storage.capacity(f"c{at}", zone, capacity, largest=largest)
    storage.capacity("other", "b", "1Ti", cls="slow")
    plugin = made(storage)
    assert await feasible(storage, plugin, "data") == ((zones, "") if zones else refused(SPACE))
    storage.claim("data", size=None)
    assert await feasible(storage, plugin, "data") == ("abc", ""), "it wants no size"
    storage.claim("data")
    storage.csi_driver(tracks_capacity=False)
    assert await feasible(storage, plugin, "data") == ("abc", "")


async def test_a_node_that_was_chosen_for_a_claim_is_the_only_one() -> None:
    """Its volume is being made already."""
    storage = three_zones()
    plugin = made(storage)
    storage.claim("data", annotations={"volume.kubernetes.io/selected-node": "nb"})
    storage.claim("more")
    assert await feasible(storage, plugin, "data", "more") == ("b", "")
    storage.claim("data", annotations={"volume.kubernetes.io/selected-node": "gone"})
    assert await feasible(storage, plugin, "data", "more") == refused(NONE)


async def test_all_reasons_of_a_node_are_named() -> None:
    """In Kubernetes' order."""
    storage = three_zones()
    storage.volume("pv", "x")
    storage.claim("bound", "pv")
    storage.csi_driver()
    storage.claim("data")
    _, why = await feasible(storage, made(storage), "bound", "data")
    assert why == f"0/3 nodes are available: 3 {SPACE}, 3 {FAR}."


_ZONES = st.sampled_from(["a", "b", "c", "d"])
_SIZES = st.sampled_from(["1Gi", "2Gi", "3Gi"])
_VOLUMES = st.lists(
    st.tuples(st.lists(_ZONES, max_size=2), _SIZES, st.sampled_from([FAST, "slow"])), max_size=6
)
_CLAIMS = st.lists(
    st.tuples(_SIZES, st.sampled_from([FAST, "slow"]), st.sampled_from(["", "", "", "n0", "n1"])),
    min_size=1,
    max_size=4,
)


@given(
    st.lists(_ZONES, max_size=5),
    _VOLUMES,
    _CLAIMS,
    st.lists(_ZONES, max_size=2),
    st.lists(st.tuples(_ZONES, _SIZES), max_size=3),
    st.sampled_from([DRIVER, "kubernetes.io/no-provisioner"]),
)
def test_both_forms_agree(
    zones: list[str],
    volumes: list[tuple[list[str], str, str]],
    claims: list[tuple[str, str, str]],
    allowed: list[str],
    capacities: list[tuple[str, str]],
    provisioner: str,
) -> None:
    """In Filter and in Score, on any storage."""
    storage = Storage()
    for at, zone in enumerate(zones):
        storage.node(f"n{at}", zone=zone)
    storage.storage_class(FAST, *allowed, provisioner=provisioner)
    storage.storage_class("slow")
    for at, (reach, size, cls) in enumerate(volumes):
        storage.volume(f"pv{at}", *reach, size=size, cls=cls)
    for at, (size, cls, node) in enumerate(claims):
        notes = {"volume.kubernetes.io/selected-node": node} if node else {}
        storage.claim(f"c{at}", size=size, cls=cls, annotations=notes)
    for at, (zone, size) in enumerate(capacities):
        storage.csi_driver()
        storage.capacity(f"s{at}", zone, size)
    shape = (
        ShapePoint(utilization=0, score=0),
        ShapePoint(utilization=33, score=7),
        ShapePoint(utilization=100, score=3),
    )
    pod = storage.wanted(*(f"c{at}" for at in range(len(claims))))
    assert_forms_agree(made(storage, shape=shape), pod, storage.view())


def test_hints() -> None:
    """Of each kind what may help."""
    storage = three_zones()
    of_class, of_claim, of_volume, node, driver, capacity = made(storage).events_to_register()
    assert of_class.hint
    assert of_claim.hint
    assert driver.hint
    assert capacity.hint
    assert of_volume.hint is None
    assert node.hint is None
    state, pod = storage.cluster.state, storage.wanted("data")

    one = state.get(STORAGE_CLASS, FAST)
    storage.storage_class(FAST, "a")
    other = state.get(STORAGE_CLASS, FAST)
    assert of_class.hint(pod, None, one) is QueueingHint.QUEUE
    assert of_class.hint(pod, one, other) is QueueingHint.QUEUE
    assert of_class.hint(pod, other, other) is QueueingHint.SKIP

    storage.claim("data")
    storage.claim("other")
    assert of_claim.hint(pod, None, state.get(CLAIM, "default/data")) is QueueingHint.QUEUE
    assert of_claim.hint(pod, None, state.get(CLAIM, "default/other")) is QueueingHint.SKIP

    storage.csi_driver()
    one = state.get(CSI_DRIVER, DRIVER)
    storage.csi_driver(tracks_capacity=False)
    other = state.get(CSI_DRIVER, DRIVER)
    assert driver.hint(pod, one, other) is QueueingHint.QUEUE
    assert driver.hint(pod, other, one) is QueueingHint.SKIP

    storage.capacity("c", "a", "1Gi")
    one = state.get(STORAGE_CAPACITY, "csi/c")
    storage.capacity("c", "a", "2Gi")
    other = state.get(STORAGE_CAPACITY, "csi/c")
    assert capacity.hint(pod, None, one) is QueueingHint.QUEUE
    assert capacity.hint(pod, one, other) is QueueingHint.QUEUE
    assert capacity.hint(pod, other, one) is QueueingHint.SKIP
