"""Gangs as pods and PodGroups make them (worked examples 1, 3, 8 to 11b of the specification)."""

from typing import Any

from msgspec.structs import replace

from koord.api.podgroup import (
    GROUP_LABEL,
    GROUPS,
    LIGHTWEIGHT_MIN_LABEL,
    LIGHTWEIGHT_NAME_LABEL,
    PodGroup,
    read_pod_group,
)
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.cluster.state import ClusterState
from koord_scheduler_plugins.coscheduling.gangs import (
    GangDefaults,
    Gangs,
    basic_check,
    in_order,
)
from tests.support.clusters import finished, node, pod, read_node, read_pod


def member(name: str, minimum: str = "2", gang: str = "g", bound: str = "") -> ClusterPod:
    labels = {LIGHTWEIGHT_NAME_LABEL: gang, LIGHTWEIGHT_MIN_LABEL: minimum}
    return read_pod(pod(name, bound, labels))


def of_group(name: str, bound: str = "") -> ClusterPod:
    return read_pod(pod(name, bound, {GROUP_LABEL: "g"}))


def pod_group(minimum: int, uid: str = "u", **annotations: str) -> Any:
    meta = {"namespace": "default", "name": "g", "uid": uid, "annotations": annotations}
    return read_pod_group({"metadata": meta, "spec": {"minMember": minimum}})


class World:
    def __init__(self, *pods: ClusterPod) -> None:
        self.state = ClusterState()
        self.gangs = Gangs(self.state, GangDefaults())
        self.pod_groups: dict[str, PodGroup] = {}
        self.gangs.pod_groups = self.pod_groups
        self.state.put(NODE, read_node(node("n")))
        for one in pods:
            self.state.put(POD, one)

    def declare(self, group: PodGroup) -> None:
        self.pod_groups[group.key] = group


def test_a_gang_of_a_pod_group_waits_for_it():
    made = World(of_group("a"))
    found = made.gangs.gang("default/g")
    assert found.spec is None
    assert not found.complete
    made.declare(pod_group(1))
    assert made.gangs.gang("default/g").complete


def test_the_first_member_with_legal_parameters_counts_while_it_lives():
    made = World(member("a", "xxx"), member("b", "2"), member("c", "3"))
    assert made.gangs.gang("default/g").spec.min_members == 2
    made.state.put(POD, member("b", "9"))
    assert made.gangs.gang("default/g").spec.min_members == 2
    made.state.remove(POD, "default/b")
    assert made.gangs.gang("default/g").spec.min_members == 3


def test_a_gang_of_annotations_goes_with_its_last_member_and_one_of_a_pod_group_stays():
    made = World(member("a"))
    assert made.gangs.gang("default/g") is not None
    made.state.remove(POD, "default/a")
    assert made.gangs.gang("default/g") is None
    made.declare(pod_group(2))
    assert not made.gangs.gang("default/g").members


def test_bound_members_count_whenever_the_pod_group_comes():
    """Upstream forgets them until their next change (defect 21.9)."""
    made = World(of_group("a", "n"), of_group("b", "n"), of_group("c"))
    made.declare(pod_group(2))
    assert made.gangs.gang("default/g").placed == 2
    made.pod_groups.clear()
    assert made.gangs.gang("default/g").spec is None
    made.declare(pod_group(2, "another"))
    assert made.gangs.gang("default/g").placed == 2


def test_finished_members_are_none():
    made = World(member("a", bound="n"), member("b", bound="n"))
    made.state.put(POD, read_pod(finished(pod("b", "n", dict(member("b").labels)))))
    assert made.gangs.gang("default/g").members == {"default/a": "n"}


def test_the_basic_check_names_what_a_group_lacks():
    made = World(of_group("a"), member("x", "3", "h"), read_pod(pod("y", "", {GROUP_LABEL: "i"})))
    names = '["default/h","default/g","default/i","default/absent"]'
    made.declare(pod_group(1, **{GROUPS: names}))
    found = made.gangs.group(made.gangs.gang("default/g"))
    group = "[default/absent default/g default/h default/i]"
    assert basic_check(found) == (
        f"gangGroup {group} basic check: memberGangs [default/absent] doesn't exists, "
        f"memberGangs [default/i] has not init, memberGangs {group} child pod not collect enough"
    )


def test_members_have_an_order():
    """By index, then by age, then by name."""
    index = "gang.scheduling.koordinator.sh/network-topology-index"
    pods = [
        replace(member("late"), created=2.0),
        replace(member("early"), created=1.0),
        replace(member("second"), annotations=((index, "2"),)),
        replace(member("first"), annotations=((index, "1"),)),
        replace(member("none"), created=1.0, annotations=((index, "x"),)),
    ]
    assert [one.name for one in in_order(pods)] == ["first", "second", "early", "none", "late"]
