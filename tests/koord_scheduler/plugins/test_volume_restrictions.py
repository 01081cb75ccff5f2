"""Disks and claims that only one pod may have."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.framework.status import Code, CycleState
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.plugin import QueueingHint
from koord_scheduler.plugin.storage import CLAIM
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.volumes import VolumeRestrictions
from tests.support.scheduler.volumes import Storage

DISK = "node(s) had no available disk"
ONCE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)
GCE, EBS = {"pdName": "d"}, {"volumeID": "vol"}
READ = {"readOnly": True}
ISCSI = {"iqn": "q", "targetPortal": "p", "lun": 0}
RBD = {"monitors": ["m1", "m2"], "image": "i"}


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        ({"gcePersistentDisk": GCE}, {"gcePersistentDisk": GCE}, False),
        ({"gcePersistentDisk": GCE}, {"gcePersistentDisk": {"pdName": "other"}}, True),
        ({"gcePersistentDisk": GCE | READ}, {"gcePersistentDisk": GCE}, False),
        ({"gcePersistentDisk": GCE | READ}, {"gcePersistentDisk": GCE | READ}, True),
        ({"awsElasticBlockStore": EBS}, {"awsElasticBlockStore": EBS}, False),
        ({"awsElasticBlockStore": EBS | READ}, {"awsElasticBlockStore": EBS | READ}, False),
        ({"iscsi": ISCSI}, {"iscsi": ISCSI}, False),
        ({"iscsi": ISCSI | READ}, {"iscsi": ISCSI | READ}, True),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["m2"]}}, False),
        ({"rbd": RBD}, {"rbd": RBD | {"monitors": ["m3"]}}, True),
        ({"rbd": RBD}, {"rbd": RBD | {"pool": "p"}}, True),
        ({"rbd": RBD | READ}, {"rbd": RBD | READ}, True),
        ({"gcePersistentDisk": GCE}, {}, True),
    ],
)
async def test_a_disk_is_not_on_a_node_twice(mine: Any, theirs: Any, fits: bool) -> None:
    """Unless all pods only read it; of EBS never. A finished pod has released its disks."""
    storage = Storage()
    storage.node("n1")
    storage.pod("other", node="n1", namespace="else", **theirs)
    plugin, pod = VolumeRestrictions(None, storage.handle()), storage.wanted(**mine)
    wanted = "" if fits else f"0/1 nodes are available: 1 {DISK}."
    assert await storage.message(plugin, pod) == wanted
    assert_forms_agree(plugin, pod, storage.view())
    storage.pod("other", node="n1", namespace="else", phase="Succeeded", **theirs)
    assert await storage.message(plugin, pod) == ""
    assert_forms_agree(plugin, pod, storage.view())


def once(storage: Storage) -> None:
    storage.claim("data", "pv", accessModes=["ReadWriteOncePod"])


async def test_a_claim_of_one_pod_only() -> None:
    """While another pod of the cluster uses it, there is no node; preemption could help."""
    storage = Storage()
    storage.node("n1")
    storage.node("n2")
    once(storage)
    plugin, pod = VolumeRestrictions(None, storage.handle()), storage.wanted("data")
    assert await storage.message(plugin, pod) == ""
    storage.pod("other", "data", node="n1", namespace="else")
    assert await storage.message(plugin, pod) == "", "the other namespace's claim"
    storage.pod("other", "data", node="n1")
    assert await storage.message(plugin, pod) == f"0/2 nodes are available: 2 {ONCE}."
    assert_forms_agree(plugin, pod, storage.view())
    storage.claim("data", "pv", accessModes=["ReadWriteOnce"])
    assert await storage.message(plugin, pod) == ""


def test_preemption_finds_that_the_claim_gets_free() -> None:
    """RemovePod counts the user off, in the what-if only; AddPod counts it again."""
    storage = Storage()
    storage.node("n1")
    once(storage)
    user = storage.pod("other", "data", node="n1")
    bystander = storage.pod("bystander", "logs", node="n1")
    plugin, pod, state = VolumeRestrictions(None, storage.handle()), storage.wanted("data"), None
    state = CycleState()
    view = storage.view()
    node = NodeInfo(view, 0)
    assert plugin.pre_filter(state, pod, view) is None
    rejected = plugin.filter(state, pod, node)
    assert rejected is not None
    assert rejected.code is Code.UNSCHEDULABLE

    imagined = state.clone()
    plugin.remove_pod(imagined, pod, bystander, node)
    assert plugin.filter(imagined, pod, node) is not None
    plugin.remove_pod(imagined, pod, user, node)
    assert plugin.filter(imagined, pod, node) is None
    assert plugin.filter_reuse_key(imagined, pod, view) != plugin.filter_reuse_key(state, pod, view)
    plugin.add_pod(imagined, pod, user, node)
    assert plugin.filter(imagined, pod, node) is not None
    assert plugin.filter(state, pod, node) is not None


def test_what_is_skipped_and_what_is_refused() -> None:
    storage = Storage()
    storage.node("n1")
    plugin = VolumeRestrictions(None, storage.handle())
    assert storage.pre_filter(plugin, storage.wanted()).code is Code.SKIP
    assert storage.pre_filter(plugin, storage.wanted(ephemeral=["x"])).code is Code.SKIP
    status = storage.pre_filter(plugin, storage.wanted("data"))
    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert status.message == 'persistentvolumeclaim "data" not found'
    once(storage)
    assert storage.pre_filter(plugin, storage.wanted("data")).code is Code.SKIP


_DISKS = st.fixed_dictionaries(
    {},
    optional={
        "gcePersistentDisk": st.sampled_from([GCE, GCE | READ, {"pdName": "e"}]),
        "rbd": st.sampled_from([RBD, RBD | READ, RBD | {"monitors": ["m3"]}]),
    },
)


@given(st.lists(st.tuples(st.integers(0, 2), _DISKS, st.booleans()), max_size=8), _DISKS)
def test_both_forms_agree(others: list[tuple[int, Any, bool]], mine: Any) -> None:
    """On any pods, as they come one after the other."""
    storage = Storage()
    for at in range(3):
        storage.node(f"n{at}")
    once(storage)
    plugin, pod = VolumeRestrictions(None, storage.handle()), storage.wanted("data", **mine)
    for at, (row, disks, uses) in enumerate(others):
        claims = ["data"] if uses else []
        storage.pod(f"p{at}", *claims, node=f"n{row}", **disks)
        assert_forms_agree(plugin, pod, storage.view())


def test_hints() -> None:
    """A pod that had a disk or claim of ours leaves; our claim comes; a node comes."""
    storage = Storage()
    left, node, added = VolumeRestrictions(None, storage.handle()).events_to_register()
    assert left.hint
    assert added.hint
    assert node.hint is None
    pod = storage.wanted("data", gcePersistentDisk=GCE)
    for other, hint in (
        (storage.pod("a", "data"), QueueingHint.QUEUE),
        (storage.pod("b", "data", namespace="else"), QueueingHint.SKIP),
        (storage.pod("c", namespace="else", gcePersistentDisk=GCE), QueueingHint.QUEUE),
        (storage.pod("d", awsElasticBlockStore=EBS), QueueingHint.SKIP),
    ):
        assert left.hint(pod, other, None) is hint
    once(storage)
    storage.claim("other")
    state = storage.cluster.state
    assert added.hint(pod, None, state.get(CLAIM, "default/data")) is QueueingHint.QUEUE
    assert added.hint(pod, None, state.get(CLAIM, "default/other")) is QueueingHint.SKIP
