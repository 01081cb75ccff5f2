"""Tables of volumes that change from pod to pod: they say what the plain form says."""

import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin.storage import STORAGE_CAPACITY, VOLUME
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.volume_binding import VolumeBinding
from koord_scheduler_plugins.volume_binding.podvolumes import ShapePoint, VolumeBindingArgs
from tests.support.scheduler.volumes import FAST, Storage

_SHAPE = (ShapePoint(utilization=0, score=0), ShapePoint(utilization=100, score=10))
_ZONES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=2)
_VOLUMES = st.fixed_dictionaries(
    {
        "zones": _ZONES,
        "size": st.sampled_from(["1Gi", "2Gi", "3Gi"]),
        "cls": st.sampled_from([FAST, FAST, "slow"]),
        "phase": st.sampled_from(["Available", "Available", "Released"]),
        "claimRef": st.sampled_from(
            [None, None, None, {"namespace": "default", "name": "c0"}, {"name": "x"}]
        ),
        "labels": st.sampled_from([{}, {"tier": "gold"}]),
        "accessModes": st.sampled_from([[], ["ReadWriteOnce"]]),
    }
)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["volume", "volume", "volume", "gone", "reserve", "unreserve", "node"]),
        st.integers(0, 5),
        _VOLUMES,
    ),
    max_size=20,
)


@settings(max_examples=200)
@given(_STEPS)
def test_both_forms_agree(steps: list[tuple[str, int, dict[str, Any]]]) -> None:
    """However volumes come, change, go and are assumed between two pods; in both profiles."""
    storage = Storage()
    storage.node("na", zone="a")
    storage.node("nb", zone="b")
    for cls in (FAST, "slow"):
        storage.storage_class(cls, provisioner="")
    storage.claim("c0", size="1Gi")
    storage.claim("c1", size="2Gi", accessModes=["ReadWriteOnce"])
    storage.claim("c2", size="1Gi", selector={"matchLabels": {"tier": "gold"}})
    storage.claim("c3", size="3Gi", cls="slow")
    storage.claim("taken", size="1Gi")
    args = VolumeBindingArgs(shape=_SHAPE)
    one, other = (VolumeBinding(args, storage.handle()) for _ in range(2))
    state, owner = CycleState(), storage.pod("owner", "taken")
    for what, number, spec in steps:
        if what == "volume":
            rest = {key: value for key, value in spec.items() if key != "zones"}
            storage.volume(f"pv{number}", *spec["zones"], **rest)
        elif what == "gone":
            storage.cluster.state.remove(VOLUME, f"pv{number}")
        elif what == "node":
            storage.node(f"n{number}", zone="abc"[number % 3])
        elif what == "reserve":
            one.unreserve(state, owner, "na")
            state = CycleState()
            if one.pre_filter(state, owner, storage.view()) is None:
                one.reserve(state, owner, "na")
        else:
            one.unreserve(state, owner, "na")
        view = storage.view()
        for plugin in (one, other):
            assert_forms_agree(plugin, storage.wanted("c0", "c1"), view)
            assert_forms_agree(plugin, storage.wanted("c2", "c0", "c3"), view)


def test_many_local_volumes_take_no_longer_than_few() -> None:
    """A thousand volumes of a thousand nodes: the columns do it, not a loop over them."""
    storage = Storage()
    for at in range(1000):
        storage.cluster.node(f"n{at}")
        key = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f"n{at}"]}
        terms = [{"matchExpressions": [key]}]
        near = {"required": {"nodeSelectorTerms": terms}}
        storage.volume(f"local-{at}", nodeAffinity=near)
    storage.storage_class(provisioner="")
    storage.claim("one")
    storage.claim("two")
    plugin = VolumeBinding(VolumeBindingArgs(), storage.handle())
    view, pod = storage.view(), storage.wanted("one", "two")

    def seconds() -> float:
        began, state = time.thread_time(), CycleState()
        assert plugin.pre_filter(state, pod, view) is None
        assert (plugin.filter_all(state, pod, view).numbers != 0).all(), "each has only one"
        return time.thread_time() - began

    seconds()
    assert min(seconds() for _ in range(5)) < 0.01


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "gone"]),
            st.integers(0, 4),
            st.sampled_from(["a", "b", None]),
            st.sampled_from(["1Gi", "3Gi", None]),
            st.sampled_from([FAST, "slow"]),
        ),
        max_size=15,
    )
)
def test_capacities_that_change_from_pod_to_pod(steps: list[tuple[Any, ...]]) -> None:
    """As the plain form has them."""
    storage = Storage()
    for at, zone in enumerate("abc"):
        storage.node(f"n{at}", zone=zone)
    for cls in (FAST, "slow"):
        storage.storage_class(cls)
        storage.claim(cls, size="2Gi", cls=cls)
    storage.csi_driver()
    plugin = VolumeBinding(VolumeBindingArgs(), storage.handle())
    for what, number, zone, size, cls in steps:
        if what == "gone":
            storage.cluster.state.remove(STORAGE_CAPACITY, f"csi/c{number}")
        else:
            storage.capacity(f"c{number}", zone, size, cls=cls)
        for name in (FAST, "slow"):
            assert_forms_agree(plugin, storage.wanted(name), storage.view())


async def test_the_tables_are_ready_before_the_first_cycle() -> None:
    """Made in small steps, so that the loop goes on."""
    storage = Storage()
    storage.node("na", zone="a")
    storage.storage_class(provisioner="")
    storage.claim("data")
    for at in range(250):
        storage.volume(f"pv{at}", "a" if at == 249 else "b", size="2Gi")
    plugin = VolumeBinding(VolumeBindingArgs(), storage.handle())
    async with storage.parts_running() as ready:
        await ready
        found = await storage.search(plugin, storage.wanted("data"))
    assert found.feasible.all()
