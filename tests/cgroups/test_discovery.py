"""Discovery of pods on a real kernel, with whichever cgroup version."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from koord.util.clock import SystemClock
from koord.util.filewatch import DirectoryWatch
from koordlet.host.cgroups.tree import CHECK_EVERY_SCANS, LIST_EVERY_SCANS, CgroupTree

from .conftest import Tree


@pytest.fixture
def base(tree: Tree) -> Path:
    """A cgroup of our own that stands for the root of the hierarchy."""
    return tree.base


@pytest.mark.parametrize(
    ("qos_dir", "pod", "container"),
    [
        (
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
            "kubelet-kubepods-burstable-pod9dba1d9e_67ba_4db6_8a73_fb3ea297c363.slice",
            "cri-containerd-c1.scope",
        ),
        ("kubepods/burstable", "pod9dba1d9e-67ba-4db6-8a73-fb3ea297c363", "c1"),
    ],
)
def test_a_pod_with_a_busy_process_comes_and_goes(
    base: Path, qos_dir: str, pod: str, container: str
) -> None:
    """One of the next scans sees it, on kernfs with its own idea of times and links."""
    tree = CgroupTree(base, SystemClock())
    assert tree.scan().pods == ()

    cgroup = base / qos_dir / pod / container
    (base / qos_dir).mkdir(parents=True)
    tree = CgroupTree(base, SystemClock())
    assert tree.scan().pods == ()
    before = time.monotonic()
    cgroup.mkdir(parents=True)
    [found] = tree.scan().pods
    assert found.uid == "9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
    assert found.containers[0].name == container
    assert found.absent_at is not None
    assert found.absent_at < before

    with subprocess.Popen(["sleep", "60"]) as process:
        (cgroup / "cgroup.procs").write_text(f"{process.pid}\n")
        assert tree.scan().pods == (found,)
        process.kill()
    cgroup.rmdir()
    scans = [tree.scan() for _ in range(CHECK_EVERY_SCANS)]
    assert scans[-1].pods[0].containers == ()
    cgroup.parent.rmdir()
    assert tree.scan().pods == ()


def test_directories_have_a_link_count_but_no_useful_time(base: Path) -> None:
    """What the scan relies upon, and why it does not use modification times."""
    empty = base.stat()
    (base / "a").mkdir()
    (base / "b").mkdir()
    two = base.stat()
    (base / "a").rmdir()

    assert (empty.st_nlink, two.st_nlink, base.stat().st_nlink) == (2, 4, 3)
    assert two.st_mtime_ns == empty.st_mtime_ns


def test_a_container_replaced_between_two_scans_is_found_in_turn(base: Path) -> None:
    """The link count is the same; the real kernel gives the new one another inode number."""
    (base / "kubepods/pod1/c1").mkdir(parents=True)
    tree = CgroupTree(base, SystemClock())
    tree.scan()
    (base / "kubepods/pod1/c1").rmdir()
    (base / "kubepods/pod1/c2").mkdir()

    scans = [tree.scan() for _ in range(LIST_EVERY_SCANS)]

    [container] = scans[-1].pods[0].containers
    assert container.name == "c2"
    assert container.absent_at is not None


def test_a_cgroup_deleted_while_it_is_listed_is_no_problem(
    base: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers end at any moment, also between the listing of a class and that of a pod."""
    (base / "kubepods/burstable/pod1/c1").mkdir(parents=True)
    (base / "kubepods/burstable/pod2/c1").mkdir(parents=True)
    scanner = CgroupTree(base, SystemClock())
    real_stat = os.stat

    def remove_then_stat(path: str, **options: object) -> os.stat_result:
        if path == "pod1" and (base / "kubepods/burstable/pod1").exists():
            tree.remove("kubepods/burstable/pod1")
        return real_stat(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("koordlet.host.cgroups.tree.os.stat", remove_then_stat)

    scan = scanner.scan()
    assert not scan.problems
    assert [pod.uid for pod in scanner.scan().pods] == ["2"]


@pytest.mark.parametrize("pods", [1500])
def test_a_tree_beyond_the_limits_is_bounded(base: Path, pods: int) -> None:
    """A leak of cgroups costs neither memory nor time without end, and is reported."""
    for number in range(pods):
        (base / f"kubepods/besteffort/pod{number}").mkdir(parents=True)
    tree = CgroupTree(base, SystemClock())

    scan = tree.scan()
    assert len(scan.pods) == 1000
    assert f"found {pods - 1000} more" in scan.problems[0]
    assert tree.scan() is scan


async def test_the_kernel_notifies_of_cgroups_that_come_and_go(base: Path) -> None:
    """By inotify, at once, in a kernfs as in any file system."""
    reported = asyncio.Event()
    watch = DirectoryWatch(reported.set)
    watch.open()
    watch.follow([base])
    assert watch.problem == ""
    pod = base / "pod9dba1d9e-67ba-4db6-8a73-fb3ea297c363"
    for change in (pod.mkdir, pod.rmdir):
        change()
        await asyncio.wait_for(reported.wait(), 30)
        reported.clear()
    watch.close()
