"""A network namespace for one test, with two interfaces that are joined."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CLONE_NEWNET = 0x40000000

needs_namespaces = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="needs root: makes interfaces in a namespace of its own"
    ),
]


def tc(arguments: str) -> str:
    """Run tc; return what it prints."""
    done = subprocess.run(["tc", *arguments.split()], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ip(arguments: str) -> None:
    """Run ip."""
    subprocess.run(["ip", *arguments.split()], check=True, timeout=20)


@contextmanager
def own_network() -> Iterator[None]:
    """Have this thread in a namespace with va and its peer vb, both up; skip where there is none.

    The kernel must have HTB.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET):
            reason = os.strerror(ctypes.get_errno())
            pytest.skip(f"no network namespace can be made here: {reason}")
        try:
            ip("link add va type veth peer name vb")
            ip("link set va up")
            ip("link set vb up")
            _check_htb()
            yield
        finally:
            assert libc.setns(before, CLONE_NEWNET) == 0
    finally:
        os.close(before)


def _check_htb() -> None:
    command = ["tc", "qdisc", "add", "dev", "vb", "root", "handle", "9:", "htb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"this kernel has no HTB (CONFIG_NET_SCH_HTB): {done.stderr.strip()}")
    tc("qdisc del dev vb root")
