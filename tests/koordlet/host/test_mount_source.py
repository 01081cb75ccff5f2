"""What of the node may be mounted into containers. Directories such as /tmp are open to all."""

import os
from pathlib import Path

import pytest

from koord.util.errors import UnsafeFile
from koordlet.host import paths
from koordlet.host.paths import check_mount_source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with HAMi-core."""
    (tmp_path / "tmp/vgpulock").mkdir(parents=True)
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "tmp/vgpulock").chmod(0o777)
    (tmp_path / "opt/vgpu").mkdir(parents=True, mode=0o755)
    (tmp_path / "opt").chmod(0o755)
    (tmp_path / "opt/vgpu").chmod(0o755)
    (tmp_path / "opt/vgpu/lib.so").touch()
    (tmp_path / "opt/vgpu/lib.so").chmod(0o644)
    return tmp_path


@pytest.mark.parametrize("path", ["/tmp/vgpulock", "/opt/vgpu/lib.so", "/opt/vgpu"])
def test_those_that_only_root_can_replace(root: Path, path: str) -> None:
    """A directory may be open itself: containers have their locks there."""
    check_mount_source(root, path)


@pytest.mark.parametrize(
    ("link", "path"), [("tmp/vgpulock", "/tmp/vgpulock"), ("opt/vgpu", "/opt/vgpu/lib.so")]
)
def test_links_are_not_followed(root: Path, link: str, path: str) -> None:
    (root / link).rename(root / "moved")
    (root / link).symlink_to(root / "moved")
    with pytest.raises(UnsafeFile, match="no plain file or directory"):
        check_mount_source(root, path)


@pytest.mark.parametrize(
    ("open_to_all", "mode", "path"),
    [
        ("tmp", 0o777, "/tmp/vgpulock"),  # not sticky
        ("opt/vgpu", 0o775, "/opt/vgpu/lib.so"),
        ("opt/vgpu/lib.so", 0o646, "/opt/vgpu/lib.so"),
    ],
)
def test_those_that_others_can_replace_or_write(
    root: Path, open_to_all: str, mode: int, path: str
) -> None:
    (root / open_to_all).chmod(mode)
    with pytest.raises(UnsafeFile, match="that others may write it"):
        check_mount_source(root, path)


def test_those_of_other_users(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "is_trusted", lambda uid: False)
    with pytest.raises(UnsafeFile, match=f"user {os.getuid()} as its owner"):
        check_mount_source(root, "/tmp/vgpulock")


@pytest.mark.parametrize("path", ["/", "", "/tmp/../opt", "/tmp//vgpulock", "/./tmp"])
def test_paths_that_lead_elsewhere(root: Path, path: str) -> None:
    with pytest.raises(UnsafeFile, match="empty parts or dots"):
        check_mount_source(root, path)


def test_one_that_is_not_there(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_mount_source(root, "/tmp/other")


def test_pipes_and_the_like(root: Path) -> None:
    os.mkfifo(root / "opt/vgpu/pipe", 0o600)
    with pytest.raises(UnsafeFile, match="no plain file or directory"):
        check_mount_source(root, "/opt/vgpu/pipe")
