"""The holder of a lock, from /proc/locks."""

import contextlib
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.errors import KernelFileError
from koordlet.host.processes import _holders, _uids, flock_holder, process_uids

LOCKS = b"""\
1: POSIX  ADVISORY  WRITE 100 00:1b:256 0 EOF
2: FLOCK  ADVISORY  WRITE 4711 00:1b:256 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4712 00:1b:256 0 EOF
3: FLOCK  ADVISORY  READ  17 fd:01:9999999999 0 EOF
4: OFDLCK ADVISORY  WRITE -1 00:05:10 0 0
"""


def test_holders_by_file():
    """Those that wait, and locks of other kinds, are none."""
    assert _holders(LOCKS) == {(0, 0x1B, 256): 4711, (0xFD, 1, 9999999999): 17}


@given(st.binary())
def test_any_text_is_taken(data):
    for pid in _holders(data).values():
        assert pid >= 0
    with contextlib.suppress(ValueError):
        assert 1 <= len(_uids(data)) <= 4


def test_a_lock_of_this_process(tmp_path):
    """On a real file system, from the real list."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert flock_holder(Path("/proc"), descriptor) is None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert flock_holder(Path("/proc"), descriptor) == os.getpid()
    finally:
        os.close(descriptor)


def test_users_of_a_process(tmp_path):
    assert process_uids(Path("/proc"), os.getpid()) == {os.getuid(), os.geteuid()}
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nUid:\t1000\t0\t0\t1000\nGid:\t5\t5\t5\t5\n")
    assert process_uids(tmp_path, 7) == {0, 1000}
    assert process_uids(tmp_path, 8) is None
    (tmp_path / "7" / "status").write_text("Name:\tx\n")
    with pytest.raises(KernelFileError, match="no line with its user ids"):
        process_uids(tmp_path, 7)
