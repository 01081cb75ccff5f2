"""What the DaemonSet's security context lets a process do, and what not."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.host.host import Host
from koordlet.host.privileges import missing_capabilities
from koordlet.host.resources import CPU_SHARES

from ..conftest import REAL, Tree

# What a gate does, as one line of Python; the errors that the kernel has for who may not.
ATTEMPTS = {
    "CAP_DAC_OVERRIDE": "open(FILE, 'w').write('10')",
    "CAP_KILL": "os.kill(PID, 0)",
    "CAP_NET_ADMIN": "fcntl.ioctl(socket.socket(), 0x8922, struct.pack('16si12x', b'lo', 1500))",
    "CAP_SYS_PTRACE": f"os.readlink('/proc/{os.getpid()}/cwd')",
    "CAP_SYS_ADMIN": "mount(b'none', b'/dev/shm', b'tmpfs')",
    "CAP_SYS_RESOURCE": "raise_limit(resource.RLIMIT_NICE)",
}
DENIED = ("EPERM", "EACCES")
ATTEMPT = """
import ctypes, errno, fcntl, os, resource, socket, struct
def mount(*what):
    if ctypes.CDLL(None, use_errno=True).mount(*what, 0, None):
        raise OSError(ctypes.get_errno(), "mount")
def raise_limit(which):
    hard = resource.getrlimit(which)[1] + 1
    try:
        resource.setrlimit(which, (hard, hard))
    except ValueError:
        raise OSError(errno.EPERM, "setrlimit")
try:
    {}
except OSError as err:
    print(errno.errorcode[err.errno])
else:
    print("done")
"""


def attempt(code: str) -> tuple[str, str]:
    """A command that does it and prints "done", or the error that it got."""
    return "-c", ATTEMPT.format(code)


@pytest.fixture
def cpu_shares(tree: Tree) -> Path:
    """A file of a cgroup of root's."""
    group = tree.make("group")
    host = Host(tree.paths)
    return Path(os.path.realpath(host.path(CPU_SHARES, group.path)))


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of another user."""
    with subprocess.Popen(["sleep", "600"], user=1000) as process:
        yield process.pid
        process.kill()


def in_container(path: Path) -> str:
    return f"/host-cgroup/{path.relative_to(REAL.cgroup)}"


@pytest.mark.parametrize("capability", ATTEMPTS)
def test_what_a_capability_is_for(
    capability: str, pod: dict[str, Any], contain: Any, cpu_shares: Path, stranger: int
) -> None:
    """Without it the kernel refuses, with it alone the same attempt succeeds."""
    if capability in {each.name for each in missing_capabilities(Path("/proc"))}:
        pytest.skip(f"needs {capability}, which this machine does not give to root")
    os.chown(cpu_shares, 1000, 1000)
    [container] = pod["containers"]
    line = ATTEMPTS[capability].replace("PID", str(stranger))
    code = attempt(line.replace("FILE", repr(in_container(cpu_shares))))

    assert contain(pod, *code).run().strip() in DENIED
    container["securityContext"]["capabilities"]["add"] = [capability.removeprefix("CAP_")]
    assert contain(pod, *code).run().strip() == "done"


def test_what_is_read_only_stays_so(pod: dict[str, Any], contain: Any, cpu_shares: Path) -> None:
    """Root's own files: it is the mount that lets cgroups be written or not, not a capability."""
    write = "open({!r}, 'w').write('10')".format
    cgroup = write(in_container(cpu_shares))

    assert contain(pod, *attempt(write("/file"))).run() == "EROFS\n"
    assert contain(pod, *attempt(write("/proc/sys/vm/min_free_kbytes"))).run() == "EROFS\n"
    assert contain(pod, *attempt(write("/sys/kernel/mm/ksm/run"))).run() == "EROFS\n"
    assert contain(pod, *attempt(write("/host-var-run-koordlet/file"))).run() == "done\n"
    assert contain(pod, *attempt(cgroup)).run() == "done\n"
    assert cpu_shares.read_text() == "10\n"
    only_measure = {"readOnly": True, "recursiveReadOnly": "IfPossible"}
    pod["containers"][0]["volumeMounts"][0] |= only_measure
    assert contain(pod, *attempt(cgroup)).run() == "EROFS\n"
