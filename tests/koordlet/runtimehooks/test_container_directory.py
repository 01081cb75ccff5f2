"""The directory that a container shares with HAMi's monitor: what was in it can be anything."""

import os
import stat
from pathlib import Path

import pytest

from koord.util.errors import UnsafeFile
from koordlet.runtimehooks import device_injectors
from koordlet.runtimehooks.device_injectors import renew_directory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    containers = tmp_path / "containers"
    containers.mkdir(mode=0o755)
    return containers / "uid_main"


def is_new(path: Path) -> bool:
    """Whether it is an empty directory that all may write."""
    return stat.S_IMODE(os.lstat(path).st_mode) == 0o777 and not os.listdir(path)


def test_the_first_one_is_made(path: Path) -> None:
    path.parent.rmdir()
    renew_directory(path)
    assert is_new(path)


def test_an_old_one_is_removed(path: Path) -> None:
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/c").touch()
    renew_directory(path)
    assert is_new(path)
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("below", [False, True])
def test_links_lead_nowhere(path: Path, tmp_path: Path, below: bool) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    if below:
        path.mkdir()
    (path / "link" if below else path).symlink_to(kept)
    renew_directory(path)
    assert is_new(path)
    assert os.listdir(kept) == ["file"]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("most", ["_MAX_ENTRIES", "_MAX_DEPTH"])
def test_too_much_is_left_aside(path: Path, monkeypatch: pytest.MonkeyPatch, most: str) -> None:
    """So a container cannot hold up the start of its next run, or the agent."""
    monkeypatch.setattr(device_injectors, most, 3)
    (path / "a/b/c/d/e").mkdir(parents=True)
    renew_directory(path)
    assert is_new(path)
    [aside] = set(os.listdir(path.parent)) - {path.name}
    assert aside.startswith("removed-")


def test_a_place_that_others_may_write_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(UnsafeFile):
        renew_directory(path)
    assert not path.exists()
