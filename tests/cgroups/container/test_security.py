"""The DaemonSet's security context: operations that it allows, and those it does not."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordlet.doctor.privileges import missing_capabilities
from koordlet.host.host import Host
from koordlet.host.resources import CPU_SHARES

from ..conftest import REAL, VERSION, Tree

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


def write(path: Path, text: str) -> str:
    """Code that writes to a cgroup file at once: files of Python hide errors of a late write."""
    return f"os.write(os.open({in_container(path)!r}, os.O_WRONLY), {text.encode()!r})"


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


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of root on the node, which has root's capabilities, outside of any pod."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process as of a pod that runs as root and drops all capabilities."""
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "sleep", "600"]
    with subprocess.Popen(command, env={"PASSWORD": "secret"}) as process:
        status = Path(f"/proc/{process.pid}/status")
        while "CapEff:\t0000000000000000" not in status.read_text():
            assert process.poll() is None
        yield process.pid
        process.kill()


def test_what_root_without_capabilities_can_still_do_to_the_node(
    pod: dict[str, Any], contain: Any, cpu_shares: Path, bystander: int, neighbour: int
) -> None:
    """What the security page says: signals to root's processes, and all that cgroups do to them."""
    file, value = ("cgroup.procs", bystander) if VERSION == 1 else ("cgroup.kill", 1)
    act = write(cpu_shares.parent / file, str(value))
    environ = "open('/proc/{}/environ').read()".format

    assert contain(pod, *attempt(f"os.kill({bystander}, 0)")).run() == "done\n"
    assert contain(pod, *attempt(act)).run() == "done\n"
    if VERSION == 1:
        assert str(bystander) in (cpu_shares.parent / file).read_text().split()
    assert contain(pod, *attempt(environ(neighbour))).run() == "done\n"
    assert contain(pod, *attempt(environ(bystander))).run().strip() in DENIED


def test_release_agents_take_more_than_root(pod: dict[str, Any], contain: Any) -> None:
    """Cgroup v1: a program that the kernel runs as root. Old kernels let root name one."""
    files = sorted(REAL.cgroup.glob("*/release_agent"))
    if not files:
        pytest.skip("needs cgroup v1, which has release_agent")
    before = files[0].read_text()

    assert contain(pod, *attempt(write(files[0], before))).run().strip() in DENIED
    assert files[0].read_text() == before


def test_measuring_without_root_can_do_nothing_to_the_node(
    measure_only: dict[str, Any], contain: Any, cpu_shares: Path, bystander: int
) -> None:
    """It sees no process of the node, and could not signal one; nothing of the host is writable."""
    act = write(cpu_shares, "10")
    before = cpu_shares.read_text()

    signal = f"os.kill({bystander}, 0)"
    [container] = measure_only["containers"]
    mounted, security = container["volumeMounts"][0], container["securityContext"]

    assert contain(measure_only, *attempt(signal)).run() == "ESRCH\n"
    assert contain(measure_only, *attempt(act)).run() == "EACCES\n"
    # Each of its walls holds alone: read-only for root, the user where all is writable and seen.
    security["runAsUser"] = security["runAsGroup"] = 0
    assert contain(measure_only, *attempt(act)).run() == "EROFS\n"
    security["runAsUser"] = security["runAsGroup"] = 65532
    del mounted["readOnly"], mounted["recursiveReadOnly"]
    measure_only["hostPID"] = True
    assert contain(measure_only, *attempt(signal)).run() == "EPERM\n"
    assert contain(measure_only, *attempt(act)).run() == "EACCES\n"
    assert cpu_shares.read_text() == before
