"""How many volumes of a CSI driver a node can have."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord_scheduler.framework.status import Code, CycleState
from koord_scheduler.plugin import QueueingHint
from koord_scheduler.plugin.storage import CLAIM, CSI_NODE, VOLUME, VOLUME_ATTACHMENT
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.volumes import NodeVolumeLimits
from tests.support.scheduler.volumes import DRIVER, FAST, Storage

FULL = "0/1 nodes are available: 1 node(s) exceed max volume count."
EBS = "ebs.csi.aws.com"


def one_node(limit: int | None, *, driver: str = "csi_test") -> Storage:
    """Node n1 with a limit, and volumes pv0 to pv3 for claims c0 to c3."""
    storage = Storage()
    storage.node("n1")
    storage.csi_node("n1", **{driver: limit})
    storage.storage_class()
    for at in range(4):
        storage.volume(f"pv{at}")
        storage.claim(f"c{at}", f"pv{at}")
    return storage


async def fits(storage: Storage, *claims: str, **disks: Any) -> bool:
    plugin, pod = NodeVolumeLimits(None, storage.handle()), storage.wanted(*claims, **disks)
    message = await storage.message(plugin, pod)
    assert message in ("", FULL)
    if storage.pre_filter(plugin, pod).ok:
        assert_forms_agree(plugin, pod, storage.view())
    return not message


@pytest.mark.parametrize(
    ("limit", "used", "wanted", "expected"),
    [
        (2, ["c0"], ["c1"], True),
        (2, ["c0", "c1"], ["c2"], False),
        (2, ["c0", "c1"], ["c1"], True),
        (2, ["c0", "c1"], ["c0", "c2"], False),
        (1, [], ["c0", "c1"], False),
        (0, [], ["c0"], False),
        (None, ["c0", "c1"], ["c2"], True),
        (1, ["c0"], [], True),
    ],
)
async def test_volumes_count_once(
    limit: int | None, used: list[str], wanted: list[str], expected: bool
) -> None:
    """However many pods of the node have one; without a limit there is room."""
    storage = one_node(limit)
    for at, claim in enumerate(used):
        storage.pod(f"p{at}", claim, node="n1")
        storage.pod(f"q{at}", claim, node="n1")
    storage.pod("done", "c3", node="n1", phase="Succeeded")
    assert await fits(storage, *wanted) == expected


def test_what_changes_between_two_pods_counts() -> None:
    """Volumes, claims, classes, attachments and nodes, for one and the same plugin."""
    storage = one_node(1)
    state, plugin = storage.cluster.state, NodeVolumeLimits(None, storage.handle())
    pod = storage.wanted("c1")

    def full() -> bool:
        view, cycle = storage.view(), CycleState()
        assert plugin.pre_filter(cycle, pod, view) is None
        assert_forms_agree(plugin, pod, view)
        found: bool = (~plugin.filter_all(cycle, pod, view))[0]
        return found

    assert not full()
    storage.pod("p", "c0", node="n1")
    assert full()
    storage.volume("pv0", csi=None, nfs={"server": "s", "path": "/"})
    assert not full(), "the volume is another driver's"
    storage.volume("pv0")
    assert full()
    storage.volume("pv0", csi={"driver": DRIVER, "volumeHandle": "handle-pv1"})
    assert not full(), "it is the same volume"
    storage.claim("c0", "pv2")
    assert full()
    storage.claim("c0")
    assert full(), "it is yet to be made"
    storage.storage_class(provisioner="")
    assert not full(), "nothing is made"
    storage.attachment("a", "n1", "pv3")
    assert full()
    storage.volume("pv3", csi=None, nfs={"server": "s", "path": "/"})
    assert not full(), "the attached volume is another driver's"
    storage.volume("pv3")
    assert full()
    state.remove(VOLUME_ATTACHMENT, "a")
    assert not full()
    storage.attachment("a", "n2", "pv3")
    storage.node("n2")
    storage.csi_node("n2", csi_test=1)
    assert not full()
    state.remove(NODE, "n1")
    assert full(), "the row is the other node's now"


async def test_volumes_that_are_yet_to_be_made_count() -> None:
    """By the provisioner of their class; so do those whose volume has not come yet."""
    storage = one_node(1)
    storage.claim("new")
    storage.claim("other")
    assert await fits(storage, "new")
    assert not await fits(storage, "new", "other")
    storage.pod("p", "new", node="n1")
    assert not await fits(storage, "other")
    assert await fits(storage, "new"), "the same claim"
    storage.claim("new", "coming")
    assert not await fits(storage, "other")
    storage.storage_class(FAST, provisioner="kubernetes.io/no-provisioner")
    assert await fits(storage, "other"), "nothing is made"


async def test_attached_volumes_count_without_a_pod() -> None:
    """One that a pod has, too, is no other."""
    storage = one_node(2)
    storage.pod("p", "c0", node="n1")
    storage.attachment("a0", "n1", "pv0")
    assert await fits(storage, "c2")
    storage.attachment("a1", "n1", "pv1")
    assert not await fits(storage, "c2")
    assert await fits(storage, "c1")
    storage.attachment("a1", "n2", "pv1")
    assert await fits(storage, "c2")
    storage.attachment("a1", "n1", "gone")
    assert await fits(storage, "c2")


async def test_disks_that_are_migrated_to_csi_count() -> None:
    """Those of a volume, of a class and of a pod itself."""
    storage = one_node(1, driver="ebs_csi_aws_com")
    storage.pod("p", node="n1", awsElasticBlockStore={"volumeID": "vol-1"})
    storage.volume("in-tree", csi=None, awsElasticBlockStore={"volumeID": "vol-1"})
    storage.volume("another", csi=None, awsElasticBlockStore={"volumeID": "vol-2"})
    storage.claim("same", "in-tree")
    storage.claim("second", "another")
    storage.storage_class("old", provisioner="kubernetes.io/aws-ebs")
    storage.claim("third", cls="old")
    assert await fits(storage, "same")
    assert not await fits(storage, "second")
    assert not await fits(storage, "third")
    assert not await fits(storage, awsElasticBlockStore={"volumeID": "vol-3"})
    assert await fits(storage, iscsi={"iqn": "q", "targetPortal": "p", "lun": 0})


async def test_a_node_whose_drivers_are_not_known_has_room() -> None:
    """As a driver that is not on the node: it may come with its first volume."""
    storage = one_node(0)
    assert not await fits(storage, "c0")
    storage.csi_node("n1", other=0)
    assert await fits(storage, "c0")
    storage.cluster.state.remove(CSI_NODE, "n1")
    assert await fits(storage, "c0")


async def test_the_volumes_of_nodes_are_known_before_the_first_cycle() -> None:
    """In small steps, so that the loop goes on; what changes meanwhile is not lost."""
    storage = Storage()
    storage.storage_class()
    storage.claim("new")
    for at in range(200):
        storage.node(f"n{at}")
        storage.csi_node(f"n{at}", csi_test=1)
        storage.volume(f"pv{at}")
        storage.claim(f"c{at}", f"pv{at}")
        storage.pod(f"p{at}", f"c{at}", node=f"n{at}")
    plugin = NodeVolumeLimits(None, storage.handle())
    async with storage.parts_running() as ready:
        for _ in range(4):  # the part begins in the third turn of the loop
            await asyncio.sleep(0)
        assert not ready.done()
        storage.volume("pv7", csi=None, nfs={"server": "s", "path": "/"})
        storage.cluster.state.remove(POD, "default/p9")
        view, pod, cycle = storage.view(), storage.wanted("new"), CycleState()
        assert plugin.pre_filter(cycle, pod, view) is None
        room = plugin.filter_all(cycle, pod, view)
        assert sorted(view.node(row).name for row in range(200) if room[row]) == ["n7", "n9"]
        await ready
        assert (plugin.filter_all(cycle, pod, view) == room).all()


async def test_a_claim_that_is_not_there_keeps_the_pod_from_all_nodes() -> None:
    """In Kubernetes' words, whatever the limits; of several the first."""
    storage = one_node(None)
    plugin = NodeVolumeLimits(None, storage.handle())
    for pod, name in (
        (storage.wanted("c0", "gone", "lost"), "gone"),
        (storage.wanted(ephemeral=["made"]), "web-made"),
    ):
        found = await storage.search(plugin, pod)
        text = f'looking up PVC default/{name}: persistentvolumeclaim "{name}" not found'
        assert found.diagnosis.message() == f"0/1 nodes are available: 1 {text}."
        assert found.diagnosis.node_statuses is not None
        status = found.diagnosis.node_statuses.status(0)
        assert status is not None
        assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        assert storage.pre_filter(plugin, pod).ok
        assert_forms_agree(plugin, pod, storage.view())


def test_pods_without_csi_volumes_cost_nothing() -> None:
    """Where they have claims, too."""
    storage = one_node(0)
    storage.volume("nfs", csi=None, nfs={"server": "s", "path": "/"})
    storage.claim("nfs", "nfs")
    plugin = NodeVolumeLimits(None, storage.handle())
    for pod in (storage.wanted(), storage.wanted("nfs")):
        assert storage.pre_filter(plugin, pod).code is Code.SKIP


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["pod", "gone", "node", "down", "claim", "volume", "attach", "detach", "csi", "class"]
        ),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(_STEPS)
def test_both_forms_agree(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens between two pods, and in what-ifs."""
    storage = Storage()
    state, plugin = storage.cluster.state, NodeVolumeLimits(None, storage.handle())
    for at in range(2):
        storage.claim(f"c{at}", f"pv{at}")
        storage.volume(f"pv{at}")
    for what, one, other in steps:
        if what == "pod":
            storage.pod(f"p{one}", f"c{other}", f"c{one}", node=f"n{other}")
        elif what == "gone":
            state.remove(POD, f"default/p{one}")
        elif what == "node":
            storage.node(f"n{one}")
        elif what == "down":
            state.remove(NODE, f"n{one}")
        elif what == "claim":
            storage.claim(f"c{one}", f"pv{other}" if other else "")
        elif what == "volume":
            storage.volume(f"pv{one}", csi={"driver": DRIVER, "volumeHandle": f"h{other}"})
        elif what == "attach":
            storage.attachment(f"a{one}", f"n{other}", f"pv{one}")
        elif what == "detach":
            state.remove(VOLUME_ATTACHMENT, f"a{one}")
            state.remove(VOLUME, f"pv{other}")
        elif what == "csi":
            storage.csi_node(f"n{one}", csi_test=other)
        else:
            storage.storage_class(provisioner=DRIVER if other else "")
        view = storage.view()
        for pod in (storage.wanted("c0", "c1"), storage.wanted("c3")):
            if not storage.pre_filter(plugin, pod).ok:
                continue
            assert_forms_agree(plugin, pod, view)
            if len(view):
                what_if = HypotheticalCluster(view)
                what_if.add(storage.wanted("c2", "c0", name="imagined"), view.node(0).name)
                assert_forms_agree(plugin, pod, what_if.view())


def test_hints() -> None:
    """More room on a node, a pod with volumes that leaves, our claim, a volume of our driver."""
    storage = one_node(1)
    plugin = NodeVolumeLimits(None, storage.handle())
    node, left, claim, detached = plugin.events_to_register()
    assert node.hint
    assert left.hint
    assert claim.hint
    assert detached.hint
    state, pod = storage.cluster.state, storage.wanted("c0")

    low = state.get(CSI_NODE, "n1")
    storage.csi_node("n1", csi_test=2)
    high = state.get(CSI_NODE, "n1")
    storage.csi_node("n1")
    free = state.get(CSI_NODE, "n1")
    assert node.hint(pod, None, low) is QueueingHint.QUEUE
    assert node.hint(pod, low, high) is QueueingHint.QUEUE
    assert node.hint(pod, high, low) is QueueingHint.SKIP
    assert node.hint(pod, low, free) is QueueingHint.QUEUE

    assert left.hint(pod, storage.wanted("c1"), None) is QueueingHint.QUEUE
    assert left.hint(pod, storage.wanted(), None) is QueueingHint.SKIP

    assert claim.hint(pod, None, state.get(CLAIM, "default/c0")) is QueueingHint.QUEUE
    assert claim.hint(pod, None, state.get(CLAIM, "default/c1")) is QueueingHint.SKIP

    storage.attachment("ours", "n1", "pv1")
    storage.attachment("other", "n1", "pv1", driver=EBS)
    for name, hint in (("ours", QueueingHint.QUEUE), ("other", QueueingHint.SKIP)):
        assert detached.hint(pod, state.get(VOLUME_ATTACHMENT, name), None) is hint
