"""The run directory and its lock."""

import os
from pathlib import Path

import pytest

from koordlet.daemon.environment import (
    CONTAINER_RUN_DIR,
    HOST_RUN_DIR,
    RunDir,
    RunDirError,
    default_run_dir,
)


def test_a_second_daemon_is_refused_by_the_name_of_the_holder(tmp_path):
    """Two daemons on one run directory would corrupt each other's windows."""
    with RunDir.open(tmp_path / "run"), pytest.raises(RunDirError) as caught:
        RunDir.open(tmp_path / "run")

    assert f"process {os.getpid()}" in str(caught.value)
    assert "--run-dir" in str(caught.value)


def test_the_lock_goes_with_the_daemon(tmp_path):
    """After a stop, or a kill -9, the next daemon takes the directory."""
    RunDir.open(tmp_path).close()

    with RunDir.open(tmp_path) as run_dir:
        assert run_dir.directory.path == tmp_path


def test_the_directory_is_private(tmp_path):
    """State files are for their owner alone."""
    with RunDir.open(tmp_path / "a" / "b") as run_dir:
        assert run_dir.directory.path.stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/tmp")])
def test_something_else_in_its_place_is_refused(tmp_path, make):
    """A link planted in /tmp must not redirect our files."""
    make(tmp_path / "run")

    with pytest.raises(RunDirError, match=r"/run: wanted what only root and this user can change"):
        RunDir.open(tmp_path / "run")


def test_another_users_directory_is_refused(tmp_path, monkeypatch):
    """A directory of another user can be swapped under us."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.chown(tmp_path, 54321, -1) if os.getuid() == 0 else pytest.skip("needs root to chown")

    with pytest.raises(RunDirError, match="user 54321 as its owner"):
        RunDir.open(tmp_path)


@pytest.mark.parametrize(
    ("host_mode", "uid", "writable", "wanted"),
    [
        (False, 0, True, CONTAINER_RUN_DIR),
        (True, 0, True, HOST_RUN_DIR),
        (True, 1000, True, "xdg"),
        (True, 1000, False, Path("/tmp/koordlet-1000")),
    ],
)
def test_default_place(tmp_path, host_mode, uid, writable, wanted):
    """Container, root and user each have a place that fits."""
    runtime = str(tmp_path) if writable else str(tmp_path / "missing")

    found = default_run_dir(host_mode=host_mode, uid=uid, environ={"XDG_RUNTIME_DIR": runtime})

    assert found == (tmp_path / "koordlet" if wanted == "xdg" else wanted)


@pytest.mark.parametrize("mode", [0o1777, 0o770])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path, mode):
    """A planted journal in it would have root write for them."""
    tmp_path.chmod(mode)

    with pytest.raises(RunDirError, match=f"mode {mode:04o}.*chmod go-w"):
        RunDir.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_link_for_the_lock_is_refused(tmp_path):
    """What it leads to is neither made nor written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to("../victim")

    with pytest.raises(RunDirError, match=r"/run/lock: wanted .* found a link"):
        RunDir.open(tmp_path / "run")
    assert not (tmp_path / "victim").exists()
