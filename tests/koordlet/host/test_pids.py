"""Processes of this machine and of a directory."""

import os
from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError
from koordlet.host.processes import process_groups, process_stat


def add_process(proc: Path, pid: int, stat: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(stat)


@pytest.mark.parametrize(("group_of_12", "expected"), [(12, [12]), (5, [12])])
def test_process_groups(tmp_path, group_of_12, expected):
    """The worked examples: a group that is not among the processes is the process itself."""
    add_process(tmp_path, 12, f"12 (a) S 1 {group_of_12} 0")
    add_process(tmp_path, 23, "23 (b) S 12 12 0")

    assert process_groups(tmp_path, [23, 12, 99]) == expected


def test_a_process_that_has_ended(tmp_path):
    """The error names the file."""
    with pytest.raises(KernelFileError, match="77/stat"):
        process_stat(tmp_path, 77)


def test_this_process():
    """The parent of a living process."""
    assert process_stat(Path("/proc"), os.getpid()).ppid == os.getppid()
