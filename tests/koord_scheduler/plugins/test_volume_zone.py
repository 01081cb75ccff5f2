"""Zones and regions of volumes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.framework.status import Code
from koord_scheduler.plugin import QueueingHint
from koord_scheduler.plugin.storage import CLAIM, STORAGE_CLASS, VOLUME
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.volumes import VolumeZone
from tests.support.scheduler.volumes import Storage

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA = "failure-domain.beta.kubernetes.io/zone"
CONFLICT = "node(s) had no available volume zone"


@pytest.mark.parametrize(
    ("volume", "node", "fits"),
    [
        ({ZONE: "a"}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {ZONE: "b"}, False),
        ({ZONE: "a"}, {}, True),
        ({ZONE: "a"}, {REGION: "r"}, False),
        ({}, {ZONE: "b"}, True),
        ({ZONE: "a__b"}, {ZONE: "b"}, True),
        ({ZONE: "a__b"}, {ZONE: "c"}, False),
        ({ZONE: "a__"}, {ZONE: "c"}, True),
        ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, False),
        ({BETA: "a"}, {BETA: "a"}, True),
        ({BETA: "a"}, {ZONE: "a"}, True),
        ({BETA: "a"}, {ZONE: "b"}, False),
        ({BETA: "a"}, {BETA: "b", ZONE: "a"}, False),
        ({ZONE: "a"}, {BETA: "a"}, False),
    ],
)
async def test_a_node_has_the_labels_of_the_volume(
    volume: dict[str, str], node: dict[str, str], fits: bool
) -> None:
    """A node without any such label has all; of several zones one will do; one that is empty
    makes the label mean nothing.
    """
    storage = Storage()
    storage.cluster.node("n1", labels=node)
    storage.volume("pv", labels=volume)
    storage.claim("data", "pv")
    plugin, pod = VolumeZone(None, storage.handle()), storage.wanted("data")
    message = await storage.message(plugin, pod)
    assert message == ("" if fits else f"0/1 nodes are available: 1 {CONFLICT}.")
    if volume:
        assert_forms_agree(plugin, pod, storage.view())


@pytest.mark.parametrize(
    ("claim", "mode", "message"),
    [
        (None, None, 'persistentvolumeclaim "data" not found'),
        ({"volume": "gone"}, None, 'persistentvolume "gone" not found'),
        ({"cls": ""}, None, "PersistentVolumeClaim had no pv name and storageClass name"),
        ({}, None, 'storageclass.storage.k8s.io "fast" not found'),
        ({}, "Immediate", "PersistentVolume had no name"),
        ({}, "", 'VolumeBindingMode not set for StorageClass "fast"'),
        ({}, "WaitForFirstConsumer", ""),
    ],
)
def test_a_claim_that_is_not_bound(
    claim: dict[str, Any] | None, mode: str | None, message: str
) -> None:
    """It must wait for its first pod."""
    storage = Storage()
    if claim is not None:
        storage.claim("data", **claim)
    if mode is not None:
        storage.storage_class(mode=mode or None)
    status = storage.pre_filter(VolumeZone(None, storage.handle()), storage.wanted("data"))
    wanted = Code.UNSCHEDULABLE_AND_UNRESOLVABLE if message else Code.SKIP
    assert (status.code, status.message) == (wanted, message)


def test_pods_without_claims_cost_nothing() -> None:
    """Ephemeral volumes have no zone yet."""
    storage = Storage()
    plugin = VolumeZone(None, storage.handle())
    assert storage.pre_filter(plugin, storage.wanted()).code is Code.SKIP
    assert storage.pre_filter(plugin, storage.wanted(ephemeral=["x"])).code is Code.SKIP


_LABELS = st.dictionaries(
    st.sampled_from([ZONE, REGION, BETA]), st.sampled_from(["a", "b", "a__b"]), max_size=3
)


@given(st.lists(_LABELS, max_size=5), st.lists(_LABELS, min_size=1, max_size=3))
def test_both_forms_agree(nodes: list[dict[str, str]], volumes: list[dict[str, str]]) -> None:
    """On any nodes and volumes."""
    storage = Storage()
    for at, labels in enumerate(nodes):
        storage.cluster.node(f"n{at}", labels=labels)
    for at, labels in enumerate(volumes):
        storage.volume(f"pv{at}", labels=labels)
        storage.claim(f"c{at}", f"pv{at}")
    pod = storage.wanted(*(f"c{at}" for at in range(len(volumes))))
    assert_forms_agree(VolumeZone(None, storage.handle()), pod, storage.view())


def test_hints() -> None:
    """A class that waits, the pod's claims, volumes in another zone than before."""
    storage = Storage()
    of_class, _, of_claim, of_volume = VolumeZone(None, storage.handle()).events_to_register()
    assert of_class.hint
    assert of_claim.hint
    assert of_volume.hint
    state, pod = storage.cluster.state, storage.wanted("data")

    storage.storage_class("now", mode="Immediate")
    storage.storage_class("later")
    assert of_class.hint(pod, None, state.get(STORAGE_CLASS, "now")) is QueueingHint.SKIP
    assert of_class.hint(pod, None, state.get(STORAGE_CLASS, "later")) is QueueingHint.QUEUE

    storage.claim("data")
    storage.claim("other")
    storage.claim("data", namespace="else")
    for key, hint in (
        ("default/data", QueueingHint.QUEUE),
        ("default/other", QueueingHint.SKIP),
        ("else/data", QueueingHint.SKIP),
    ):
        assert of_claim.hint(pod, None, state.get(CLAIM, key)) is hint

    storage.volume("pv", labels={ZONE: "a"})
    one = state.get(VOLUME, "pv")
    storage.volume("pv", labels={ZONE: "b"})
    other = state.get(VOLUME, "pv")
    assert of_volume.hint(pod, None, one) is QueueingHint.QUEUE
    assert of_volume.hint(pod, one, other) is QueueingHint.QUEUE
    assert of_volume.hint(pod, one, one) is QueueingHint.SKIP
