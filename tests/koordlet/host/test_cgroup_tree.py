"""Pods and containers as scans of the cgroup tree see them."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.qos import KubeQoS
from koordlet.host.cgroups import tree as cgrouptree
from koordlet.host.cgroups.tree import (
    CHECK_EVERY_SCANS,
    CLASS_DIRS_EVERY_SCANS,
    LIST_EVERY_SCANS,
    CgroupTree,
    PodDir,
)
from koordlet.plugin.testing.scripted import SimulatedClock

UID = "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
SYSTEMD_UID = UID.replace("-", "_")


def make(base: Path, *cgroups: str) -> None:
    for cgroup in cgroups:
        (base / cgroup).mkdir(parents=True)


def shape(pods: tuple[PodDir, ...]) -> dict[str, list[str]]:
    return {pod.uid: [container.name for container in pod.containers] for pod in pods}


@pytest.mark.parametrize(
    ("cgroup", "qos"),
    [
        (f"kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice", KubeQoS.GUARANTEED),
        (
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice",
            KubeQoS.BURSTABLE,
        ),
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{SYSTEMD_UID}.slice",
            KubeQoS.BEST_EFFORT,
        ),
        (f"kubepods/pod{UID}", KubeQoS.GUARANTEED),
        (f"kubepods/burstable/pod{UID}", KubeQoS.BURSTABLE),
        (f"kubelet/kubepods/besteffort/pod{UID}", KubeQoS.BEST_EFFORT),
    ],
)
def test_a_pod_is_known_by_its_path(tmp_path: Path, cgroup: str, qos: KubeQoS) -> None:
    """UID with dashes, QoS and container paths, for both drivers and nested roots."""
    make(tmp_path, f"{cgroup}/c1")

    [pod] = CgroupTree(tmp_path, SimulatedClock()).scan().pods

    assert (pod.uid, pod.kube_qos, pod.cgroup) == (UID, qos, cgroup)
    assert [container.cgroup for container in pod.containers] == [f"{cgroup}/c1"]


def test_what_is_no_pod_or_container_is_left_out(tmp_path: Path) -> None:
    """Other cgroups, files, monitors beside containers, and names that cannot be printed."""
    make(
        tmp_path,
        "kubepods/burstable/pod1/crio-11",
        "kubepods/burstable/pod1/crio-conmon-11.scope",
        "kubepods/burstable/other/c1",
        "kubepods/burstable/pod",
        "kubepods/burstable/pod..",
        "kubepods/burstable/podé",
    )
    os.mkdir(os.fsencode(tmp_path) + b"/kubepods/burstable/pod1/\xff")
    (tmp_path / "kubepods/burstable/pod1/cgroup.procs").write_text("")

    scan = CgroupTree(tmp_path, SimulatedClock()).scan()

    assert shape(scan.pods) == {"1": ["crio-11"]}
    assert not scan.problems


def test_an_unchanged_tree_gives_the_same_object(tmp_path: Path) -> None:
    """Callers compare by identity, so that nothing is rebuilt twice a second."""
    make(tmp_path, "kubepods/pod1/c1", "kubepods/burstable/pod2")
    tree = CgroupTree(tmp_path, SimulatedClock())
    first = tree.scan()

    assert all(tree.scan() is first for _ in range(2 * LIST_EVERY_SCANS))


def test_pods_and_containers_come_and_go(tmp_path: Path) -> None:
    """Pods at the next scan, containers at one of the next two; each knows since when."""
    clock = SimulatedClock(monotonic=100.0)
    tree = CgroupTree(tmp_path, clock)
    make(tmp_path, "kubepods/pod1/c1")
    [old] = tree.scan().pods
    assert (old.absent_at, old.containers[0].absent_at) == (None, None)

    for _ in range(CHECK_EVERY_SCANS):
        clock.tick(0.5)
        tree.scan()
    make(tmp_path, "kubepods/pod1/c2", "kubepods/burstable/pod2/c3")
    two = next(pod for pod in tree.scan().pods if pod.uid == "2")
    assert (two.absent_at, two.containers[0].absent_at) == (101.0, 101.0)
    for _ in range(CHECK_EVERY_SCANS - 1):
        tree.scan()
    one = next(pod for pod in tree.scan().pods if pod.uid == "1")
    assert one.containers[0].absent_at is None
    assert one.containers[1].absent_at in (100.5, 101.0)

    shutil.rmtree(tmp_path / "kubepods/pod1")
    assert shape(tree.scan().pods) == {"2": ["c3"]}
    shutil.rmtree(tmp_path / "kubepods")
    assert tree.scan().pods == ()


def test_the_first_pod_of_a_fresh_root_was_absent_too(tmp_path: Path) -> None:
    """On a plain host the kubepods cgroup appears together with its first pod."""
    clock = SimulatedClock(monotonic=100.0)
    tree = CgroupTree(tmp_path, clock)
    assert tree.scan().pods == ()

    clock.tick(0.5)
    make(tmp_path, "kubepods/burstable/pod1/c1")
    [pod] = tree.scan().pods

    assert (pod.absent_at, pod.containers[0].absent_at) == (100.0, 100.0)


def test_a_pod_made_anew_under_its_old_name_is_a_new_one(tmp_path: Path) -> None:
    """Its counters start again, which only the inode number shows."""
    clock = SimulatedClock(monotonic=100.0)
    tree = CgroupTree(tmp_path, clock)
    make(tmp_path, "kubepods/pod1/c1")
    tree.scan()

    clock.tick(0.5)
    (tmp_path / "kubepods/pod1").rename(tmp_path / "kubepods/old")  # keeps its inode number busy
    make(tmp_path, "kubepods/pod1/c1")
    absent_at = {tree.scan().pods[0].absent_at for _ in range(CLASS_DIRS_EVERY_SCANS)}

    assert 100.0 in absent_at


def test_a_container_replaced_between_two_scans_is_seen_in_turn(tmp_path: Path) -> None:
    """The link count is the same then; it was absent when the directory was listed before."""
    clock = SimulatedClock(monotonic=100.0)
    tree = CgroupTree(tmp_path, clock)
    make(tmp_path, "kubepods/pod1/c1")
    tree.scan()
    (tmp_path / "kubepods/pod1/c1").rename(tmp_path / "kubepods/pod1/c2")

    seen_after = 0
    while "c2" not in shape(tree.scan().pods)["1"]:
        clock.tick(0.5)
        seen_after += 1

    assert seen_after <= LIST_EVERY_SCANS
    [container] = tree.scan().pods[0].containers
    assert container.absent_at is None or container.absent_at >= 100.0


def test_of_two_cgroups_of_one_pod_the_one_with_containers_counts(tmp_path: Path) -> None:
    """A change of the driver leaves empty directories of the old one behind."""
    make(tmp_path, "kubepods/burstable/pod1", "kubepods.slice/kubepods-pod1.slice/c1")

    [pod] = CgroupTree(tmp_path, SimulatedClock()).scan().pods

    assert pod.cgroup == "kubepods.slice/kubepods-pod1.slice"


def test_more_pods_than_the_limit_are_named_not_measured(tmp_path: Path) -> None:
    """Known pods stay, and the place of one that ends goes to one that waits."""
    make(tmp_path, *(f"kubepods/pod{number}" for number in range(5)))
    tree = CgroupTree(tmp_path, SimulatedClock(), max_pods=3)

    first = tree.scan()
    assert set(shape(first.pods)) == {"0", "1", "2"}
    assert first.problems[0].startswith("cgroup tree: wanted at most 3 pods, found 2 more")

    make(tmp_path, "kubepods/pod9")
    assert "found 3 more" in tree.scan().problems[0]
    assert set(shape(tree.scan().pods)) == {"0", "1", "2"}

    (tmp_path / "kubepods/pod1").rmdir()
    second = tree.scan()
    assert len(second.pods) == 3
    assert all(pod.absent_at is None for pod in second.pods)


def test_more_containers_than_the_limit_are_named_not_measured(tmp_path: Path) -> None:
    """The limit is for the whole node; pods keep the containers they have."""
    make(tmp_path, *(f"kubepods/pod1/c{number}" for number in range(4)), "kubepods/pod2/d")
    tree = CgroupTree(tmp_path, SimulatedClock(), max_containers=3)

    scan = tree.scan()

    assert sum(len(pod.containers) for pod in scan.pods) == 3
    assert "found 2 more" in scan.problems[0]
    assert tree.scan() is scan


def test_a_large_class_is_listed_when_its_link_count_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing thousands of directories twice a second would cost too much."""
    monkeypatch.setattr(cgrouptree, "MANY_PODS", 2)
    make(tmp_path, *(f"kubepods/pod{number}" for number in range(5)))
    tree = CgroupTree(tmp_path, SimulatedClock())
    tree.scan()

    make(tmp_path, "kubepods/pod-new")

    assert "-new" not in shape(tree.scan().pods)  # a UID never begins with a dash
    make(tmp_path, "kubepods/pod5")
    assert "5" in shape(tree.scan().pods)


def test_a_base_that_cannot_be_listed_is_a_problem_not_an_end(tmp_path: Path) -> None:
    """What was known stays; the sentence says where to look."""
    base = tmp_path / "cgroup"
    make(base, "kubepods/pod1")
    tree = CgroupTree(base, SimulatedClock())
    tree.scan()

    shutil.move(base, tmp_path / "gone")
    scan = tree.scan()
    assert "--cgroup-root-dir" in scan.problems[0]

    shutil.move(tmp_path / "gone", base)
    again = tree.scan()
    assert not again.problems
    assert shape(again.pods) == {"1": []}


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.lists(
            st.tuples(st.sampled_from(["1", "2", "3"]), st.sampled_from(["", "a", "b"])),
            max_size=6,
        ),
        max_size=6,
    )
)
def test_after_a_full_turn_the_scan_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[str, str]]]
) -> None:
    """Whatever came and went in between, every scan's worth of change arrives in the end."""
    base = tmp_path_factory.mktemp("cgroup")
    clock = SimulatedClock()
    tree = CgroupTree(base, clock)
    for step in steps:
        shutil.rmtree(base / "kubepods", ignore_errors=True)
        wanted: dict[str, set[str]] = {}
        for uid, container in step:
            (base / "kubepods/burstable" / f"pod{uid}" / container).mkdir(
                parents=True, exist_ok=True
            )
            wanted.setdefault(uid, set()).update({container} - {""})
        for _ in range(LIST_EVERY_SCANS):
            clock.tick(0.5)
            pods = tree.scan().pods

        assert {uid: set(names) for uid, names in shape(pods).items()} == wanted
