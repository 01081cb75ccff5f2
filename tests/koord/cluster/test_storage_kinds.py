"""Storage objects from JSON: what is kept, and what is malformed."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import Requirement
from koord.cluster.facts import Disk, NodeTerm
from koord.cluster.state import ClusterState
from koord.cluster.storage import (
    CLAIM,
    CSI_DRIVER,
    CSI_NODE,
    STORAGE_CAPACITY,
    STORAGE_CLASS,
    VOLUME,
    VOLUME_ATTACHMENT,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    NodeDriver,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.util.errors import InvalidObject
from tests.support.clusters import DECODER, Json, expression, pod, read, read_pod

KINDS = (CLAIM, VOLUME, STORAGE_CLASS, CSI_NODE, CSI_DRIVER, STORAGE_CAPACITY, VOLUME_ATTACHMENT)


def test_a_claim() -> None:
    """With all that binding it is about."""
    found = read(
        CLAIM,
        {
            "metadata": {
                "name": "web-scratch",
                "namespace": "shop",
                "uid": "u",
                "resourceVersion": "7",
                "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes",
                    "volume.kubernetes.io/selected-node": "n1",
                },
                "deletionTimestamp": "2026-07-24T06:52:45Z",
                "ownerReferences": [{"kind": "Pod", "name": "web", "uid": "p", "controller": True}],
            },
            "spec": {
                "volumeName": "pv",
                "storageClassName": "fast",
                "accessModes": ["ReadWriteOncePod"],
                "resources": {"requests": {"storage": "1Gi"}},
                "selector": {"matchLabels": {"a": "b"}},
                "volumeMode": "Block",
                "volumeAttributesClassName": "gold",
            },
            "status": {"phase": "Bound"},
        },
    )
    assert found == Claim(
        "shop",
        "web-scratch",
        "pv",
        "fast",
        uid="u",
        access_modes=("ReadWriteOncePod",),
        request=1 << 30,
        selector=(Requirement("a", "In", ("b",)),),
        is_block=True,
        attributes_class="gold",
        phase="Bound",
        bind_completed=True,
        selected_node="n1",
        deleting=True,
        owner_pod="p",
        resource_version="7",
    )
    assert found.fully_bound
    owner = read_pod(pod("web", namespace="shop"))
    assert not found.is_for(owner), "a pod of another uid"
    assert read(CLAIM, {"metadata": {"name": "a"}}) == Claim("default", "a")


@pytest.mark.parametrize(
    ("spec", "driver", "handle"),
    [
        ({"csi": {"driver": "csi.test", "volumeHandle": "h"}}, "csi.test", "h"),
        ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, "ebs.csi.aws.com", "vol-1"),
        ({"gcePersistentDisk": {"pdName": "d"}}, "pd.csi.storage.gke.io", "d"),
        ({"azureDisk": {"diskName": "d", "diskURI": "/d"}}, "disk.csi.azure.com", "/d"),
        ({"cinder": {"volumeID": "c"}}, "cinder.csi.openstack.org", "c"),
        ({"nfs": {"server": "s", "path": "/"}}, "", ""),
    ],
)
def test_a_volume(spec: Json, driver: str, handle: str) -> None:
    """Volumes of kinds that are migrated to CSI count as the driver's."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression("zone", "In", "a")]}]}
    found = read(
        VOLUME,
        {
            "metadata": {"name": "pv", "labels": {"zone": "a"}, "resourceVersion": "9"},
            "spec": {
                **spec,
                "capacity": {"storage": "2Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "fast",
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
                "nodeAffinity": {"required": terms},
            },
            "status": {"phase": "Available"},
        },
    )
    assert found == Volume(
        "pv",
        (NodeTerm((Requirement("zone", "In", ("a",)),)),),
        storage_class="fast",
        capacity=2 << 30,
        access_modes=("ReadWriteOnce",),
        phase="Available",
        claim=ClaimReference("shop", "data", "u"),
        labels={"zone": "a"},
        driver=driver,
        handle=handle,
        resource_version="9",
    )


def test_the_older_annotation_of_a_class_wins() -> None:
    """As in Kubernetes, even where it is empty."""
    meta = {"name": "a", "annotations": {"volume.beta.kubernetes.io/storage-class": ""}}
    assert read(VOLUME, {"metadata": meta, "spec": {"storageClassName": "x"}}).storage_class == ""


@pytest.mark.parametrize(
    ("reference", "means"),
    [
        (ClaimReference("shop", "data"), True),
        (ClaimReference("shop", "data", "u"), True),
        (ClaimReference("shop", "data", "before"), False),
        (ClaimReference("shop", "other", "u"), False),
        (ClaimReference("", "data", "u"), False),
    ],
)
def test_a_reference_means_a_claim(reference: ClaimReference, means: bool) -> None:
    assert reference.means(Claim("shop", "data", uid="u")) == means


@pytest.mark.parametrize(
    ("obj", "found"),
    [
        ({}, StorageClass("fast", "", None)),
        (
            {"provisioner": "csi.test", "volumeBindingMode": "Immediate"},
            StorageClass("fast", "csi.test", False),
        ),
        ({"volumeBindingMode": "WaitForFirstConsumer"}, StorageClass("fast", "", True)),
        (
            {
                "allowedTopologies": [
                    {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]},
                    {"matchLabelExpressions": []},
                    {"matchLabelExpressions": [{"key": "zone", "values": []}]},
                ]
            },
            StorageClass("fast", "", None, (NodeTerm((Requirement("zone", "In", ("a", "b")),)),)),
        ),
        ({"allowedTopologies": []}, StorageClass("fast", "", None, None)),
        ({"allowedTopologies": [{}]}, StorageClass("fast", "", None, ())),
    ],
)
def test_a_class(obj: Json, found: StorageClass) -> None:
    """A topology term that is empty matches no node; no term at all allows all of them."""
    assert read(STORAGE_CLASS, {"metadata": {"name": "fast"}, **obj}) == found


def test_drivers_and_attachments() -> None:
    """A driver without a count has no limit."""
    drivers = [
        {"name": "a", "nodeID": "i", "topologyKeys": ["zone"], "allocatable": {"count": 3}},
        {"name": "b", "nodeID": "i", "topologyKeys": None},
    ]
    node = read(CSI_NODE, {"metadata": {"name": "n1"}, "spec": {"drivers": drivers}})
    assert node == CsiNode("n1", (NodeDriver("a", 3, ("zone",)), NodeDriver("b")))
    assert node.driver("b") == NodeDriver("b")
    assert node.driver("c") is None

    driver = read(CSI_DRIVER, {"metadata": {"name": "a"}, "spec": {"storageCapacity": True}})
    assert driver == CsiDriver("a", True)

    attachment = {
        "metadata": {"name": "at"},
        "spec": {"attacher": "a", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}},
    }
    assert read(VOLUME_ATTACHMENT, attachment) == VolumeAttachment("at", "a", "n1", "pv")


@pytest.mark.parametrize(
    ("obj", "limit"),
    [
        ({}, None),
        ({"capacity": "5Gi"}, 5 << 30),
        ({"capacity": "5Gi", "maximumVolumeSize": "1Gi"}, 1 << 30),
    ],
)
def test_a_capacity(obj: Json, limit: int | None) -> None:
    """The largest volume is the better figure."""
    obj = {"metadata": {"name": "c", "namespace": "csi"}, "storageClassName": "fast", **obj}
    found = read(STORAGE_CAPACITY, obj)
    assert found.limit == limit
    assert found.nodes is None
    found = read(STORAGE_CAPACITY, {**obj, "nodeTopology": {"matchLabels": {"a": "b"}}})
    assert isinstance(found, StorageCapacity)
    assert found.nodes == (Requirement("a", "In", ("b",)),)


@pytest.mark.parametrize(
    ("kind", "obj"),
    [
        (CLAIM, {"spec": {"resources": {"requests": {"storage": "much"}}}}),
        (CLAIM, {"spec": {"resources": {"requests": {"storage": "-1"}}}}),
        (CLAIM, {"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}}),
        (VOLUME, {"spec": {"capacity": {"storage": "99999999E"}}}),
        (VOLUME, {"spec": {"csi": {"driver": "a"}}}),
        (STORAGE_CLASS, {"allowedTopologies": "all"}),
        (CSI_NODE, {"spec": {"drivers": [{"nodeID": "i"}]}}),
        (STORAGE_CAPACITY, {}),
        (VOLUME_ATTACHMENT, {"spec": {"attacher": "a"}}),
    ],
)
def test_a_malformed_object_is_named(kind: Any, obj: Json) -> None:
    with pytest.raises(InvalidObject, match="bad"):
        read(kind, {"metadata": {"name": "bad"}, **obj})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)
FIELDS = st.sampled_from(
    "storageClassName capacity spec drivers resources requests storage claimRef csi selector "
    "allowedTopologies nodeTopology allocatable count accessModes nodeAffinity".split()
)


@given(st.sampled_from(KINDS), st.dictionaries(FIELDS, st.dictionaries(FIELDS, JSON) | JSON))
def test_whatever_is_in_an_object_it_is_kept_or_refused(kind: Any, obj: Json) -> None:
    """Nothing else is raised."""
    data = json.dumps({"metadata": {"name": "a"}, **obj}).encode()
    with suppress(InvalidObject):
        assert DECODER.object(kind, data).name == "a"


def test_equal_pods_share_disks_and_ephemeral_volumes() -> None:
    """Claims are each pod's own, these are not."""
    volumes = [
        {"name": "none", "ephemeral": None, "gcePersistentDisk": None},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        {"name": "g", "gcePersistentDisk": {"pdName": "d", "readOnly": True}},
        {"name": "a", "awsElasticBlockStore": {"volumeID": "vol"}},
        {"name": "i", "iscsi": {"iqn": "q", "targetPortal": "p", "lun": 0}},
        {"name": "r", "rbd": {"monitors": ["m1", "m2"], "image": "im"}},
    ]
    one, other = (read_pod(pod(name, volumes=volumes)) for name in ("one", "other"))
    assert one.spec is other.spec
    assert one.claims == ("one-scratch",)
    assert one.spec.ephemeral_volumes == ("scratch",)
    assert one.spec.disks == (
        Disk("gcePersistentDisk", "d", True),
        Disk("awsElasticBlockStore", "vol"),
        Disk("iscsi", "q"),
        Disk("rbd", "rbd/im", False, ("m1", "m2")),
    )
    plain = read_pod(pod("plain"))
    assert plain.spec is not one.spec
    assert (plain.spec.disks, plain.spec.ephemeral_volumes, plain.claims) == ((), (), ())


@pytest.mark.parametrize(
    ("one", "other", "conflicts"),
    [
        (Disk("gcePersistentDisk", "d"), Disk("gcePersistentDisk", "d"), True),
        (Disk("gcePersistentDisk", "d", True), Disk("gcePersistentDisk", "d"), True),
        (Disk("gcePersistentDisk", "d", True), Disk("gcePersistentDisk", "d", True), False),
        (Disk("gcePersistentDisk", "d"), Disk("gcePersistentDisk", "e"), False),
        (Disk("gcePersistentDisk", "d"), Disk("awsElasticBlockStore", "d"), False),
        (Disk("awsElasticBlockStore", "d", True), Disk("awsElasticBlockStore", "d", True), True),
        (Disk("iscsi", "q", True), Disk("iscsi", "q", True), False),
        (Disk("iscsi", "q", True), Disk("iscsi", "q"), True),
        (Disk("rbd", "p/i", False, ("m",)), Disk("rbd", "p/i", True, ("n", "m")), True),
        (Disk("rbd", "p/i", False, ("m",)), Disk("rbd", "p/i", False, ("n",)), False),
        (Disk("rbd", "p/i", True, ("m",)), Disk("rbd", "p/i", True, ("m",)), False),
    ],
)
def test_disks_that_cannot_be_on_one_node_twice(one: Disk, other: Disk, conflicts: bool) -> None:
    """Whichever pod comes first."""
    assert one.conflicts(other) == other.conflicts(one) == conflicts


def test_objects_are_found_by_what_is_asked_for() -> None:
    """Volumes by class, attachments by node, capacities by class; nothing is left of what went."""
    state = ClusterState()
    storage = state.storage
    state.put(VOLUME, Volume("pv", storage_class="slow"))
    state.put(VOLUME, Volume("pv", storage_class="fast"))
    assert [one.name for one in storage.volumes_of("fast")] == ["pv"]
    assert not storage.volumes_of("slow")
    state.put(VOLUME_ATTACHMENT, VolumeAttachment("at", "csi.test", "n1", "pv"))
    state.put(VOLUME_ATTACHMENT, VolumeAttachment("at", "csi.test", "n2", "pv"))
    assert not storage.attached_to("n1")
    assert [one.name for one in storage.attached_to("n2")] == ["at"]
    before = storage.attachments_version
    assert storage.attached_since(before) == []
    state.put(VOLUME_ATTACHMENT, VolumeAttachment("other", "csi.test", "n3", "pv"))
    assert storage.attached_since(before) == ["n3"]
    state.put(STORAGE_CAPACITY, StorageCapacity("csi", "c", "fast", (), 5))
    state.put(CSI_NODE, CsiNode("n1"))
    state.put(STORAGE_CLASS, StorageClass("fast"))
    assert storage.nodes_version == storage.classes_version == 1
    assert [one.name for one in storage.capacities_of("fast")] == ["c"]
    assert not list(storage.capacities_of("slow"))
    for kind in (VOLUME, VOLUME_ATTACHMENT, STORAGE_CAPACITY, STORAGE_CLASS, CSI_NODE):
        for key in tuple(state.keys(kind)):
            state.remove(kind, key)
            state.remove(kind, key)
        assert not list(state.keys(kind))
    assert not storage.volumes_of("fast")
    assert not storage.attached_to("n2")
    assert not list(storage.capacities_of("fast"))
