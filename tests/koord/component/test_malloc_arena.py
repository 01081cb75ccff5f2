"""Memory of threads: one arena of the C library for all of them."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from koord.component.process import use_one_malloc_arena
{call}
held = []
def allocate():
    held.append([bytes(1000) for _ in range(1000)])
    barrier.wait()
barrier = threading.Barrier(3)
threads = [threading.Thread(target=allocate) for _ in range(2)]
[thread.start() for thread in threads]
barrier.wait()
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


def arenas(call: str) -> int:
    """Arenas after two threads have allocated."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, text=True
    )
    if "malloc_stats" in done.stderr:
        pytest.skip("needs glibc, whose malloc has arenas")
    assert done.returncode == 0, done.stderr
    return done.stderr.count("Arena ")


def test_threads_share_the_arena_of_the_main_thread():
    assert arenas("use_one_malloc_arena()") == 1


def test_without_it_they_have_their_own():
    assert arenas("") > 1
