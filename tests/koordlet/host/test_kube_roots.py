"""Finding the kubepods cgroups of a host."""

from pathlib import Path

import pytest

from koordlet.host.cgroups import tree
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.cgroups.tree import KubeRoots, layout_of


@pytest.mark.parametrize(
    ("path", "driver"),
    [
        ("kubepods", Driver.CGROUPFS),
        ("kubepods.slice", Driver.SYSTEMD),
        ("kubelet/kubepods", Driver.CGROUPFS),
        ("kubelet.slice/kubelet-kubepods.slice", Driver.SYSTEMD),
        ("kubepods-test", Driver.CGROUPFS),
        ("system.slice", None),
        ("kubelet.slice", None),
        ("system.slice/kubelet.service", None),
        ("mykubepods", None),
        ("", None),
    ],
)
def test_a_root_is_recognized_by_its_name(path: str, driver: Driver | None) -> None:
    """Names of both drivers, also below a kubelet's --cgroup-root, and nothing else."""
    assert layout_of(path) == (Layout(driver, path) if driver else None)


@pytest.mark.parametrize(
    "path",
    [
        "kubepods",
        "kubepods.slice",
        "kubelet/kubepods",
        "kubelet.slice/kubelet-kubepods.slice",
        "docker/0123abc/kubelet/kubepods",
        "system.slice/docker-0123abc.scope/kubelet.slice/kubelet-kubepods.slice",
        "machine.slice/libpod-77.scope/kubepods",
    ],
)
def test_roots_are_found_where_kubelets_put_them(tmp_path: Path, path: str) -> None:
    """Plain nodes, kind in docker with both drivers, k3s in podman."""
    (tmp_path / path / "burstable").mkdir(parents=True)
    (tmp_path / "system.slice/sshd.service").mkdir(parents=True)

    assert [layout.root for layout in KubeRoots(tmp_path).find(now=1.0)] == [path]


def test_what_lies_below_a_root_is_not_searched(tmp_path: Path) -> None:
    """Kubernetes inside a pod belongs to that pod."""
    (tmp_path / "kubepods/pod1/c1/kubepods").mkdir(parents=True)

    assert [layout.root for layout in KubeRoots(tmp_path).find(now=1.0)] == ["kubepods"]


def test_a_root_below_the_search_depth_is_left_out(tmp_path: Path) -> None:
    """The search is bounded: kubelets are not nested this deep."""
    (tmp_path / "a/b/c/d/e/kubepods").mkdir(parents=True)

    assert KubeRoots(tmp_path).find(now=1.0) == {}


def test_a_fresh_root_knows_when_it_was_absent(tmp_path: Path) -> None:
    """At the first level that is the search before; those of the first search may be old."""
    (tmp_path / "kubepods").mkdir()
    roots = KubeRoots(tmp_path)
    assert list(roots.find(now=1.0).values()) == [None]

    roots.find(now=2.0)
    (tmp_path / "kubepods.slice").mkdir()
    found = roots.find(now=3.0)

    assert {layout.root: absent_at for layout, absent_at in found.items()} == {
        "kubepods": None,
        "kubepods.slice": 2.0,
    }


def test_a_nested_root_is_found_by_the_next_search(tmp_path: Path) -> None:
    """Searches are rare below the first level, which knows only the time of the latest one."""
    (tmp_path / "docker").mkdir()
    roots = KubeRoots(tmp_path)
    roots.find(now=1.0)
    (tmp_path / "docker/1/kubepods").mkdir(parents=True)

    assert roots.find(now=5.0) == {}
    assert roots.find(now=11.0) == {Layout(Driver.CGROUPFS, "docker/1/kubepods"): 1.0}


def test_a_root_that_went_away_is_forgotten(tmp_path: Path) -> None:
    """Both at the first level and below."""
    for path in ("kubepods", "kubelet/kubepods"):
        (tmp_path / path).mkdir(parents=True)
    roots = KubeRoots(tmp_path)
    assert len(roots.find(now=1.0)) == 2

    (tmp_path / "kubepods").rmdir()
    (tmp_path / "kubelet/kubepods").rmdir()

    assert roots.find(now=20.0) == {}


def test_a_huge_tree_is_searched_near_the_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search gives up after so many directories, says so, and has gone breadth first."""
    monkeypatch.setattr(tree, "SEARCH_DIRS", 5)
    for number in range(10):
        (tmp_path / f"system.slice/s{number}.service").mkdir(parents=True)
    (tmp_path / "kubelet/kubepods").mkdir(parents=True)
    roots = KubeRoots(tmp_path)

    found = roots.find(now=1.0)

    assert [layout.root for layout in found] == ["kubelet/kubepods"]
    assert roots.truncated


def test_files_and_links_are_no_roots(tmp_path: Path) -> None:
    """Only directories count; v1 links cpu to cpu,cpuacct, and a link could lead in a circle."""
    (tmp_path / "kubepods").write_text("")
    (tmp_path / "kubepods.slice").symlink_to(tmp_path)

    assert KubeRoots(tmp_path).find(now=1.0) == {}


def test_a_missing_base_is_an_error(tmp_path: Path) -> None:
    """The caller says what is wrong with --cgroup-root-dir."""
    with pytest.raises(OSError, match="nowhere"):
        KubeRoots(tmp_path / "nowhere").find(now=1.0)
