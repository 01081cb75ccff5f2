"""Makes a process one that lives by itself and may do nothing but change networks."""

import ctypes
import os
import struct
from pathlib import Path

CAP_NET_ADMIN = 12
_NETWORK, _CGROUP = 0x40000000, 0x02000000  # CLONE_NEWNET, CLONE_NEWCGROUP
_OWN_CGROUP = "/proc/self/ns/cgroup"
_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24  # PR_*
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
GROUP = "koordlet-network"

_libc = ctypes.CDLL(None, use_errno=True)


def leave_groups(roots: list[Path]) -> list[str]:
    """Move into a cgroup of our own in each hierarchy; return what did not work.

    So it outlives the agent's, which a container runtime or systemd kills as a whole.
    """
    problems = []
    for root in roots:
        try:
            group = root / GROUP
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as err:
            problems.append(f"{root}: {err.strerror}")
    return problems


def enter_network(namespace: Path) -> None:
    """Enter a network namespace. Raises OSError."""
    _enter(namespace, _NETWORK)


def enter_cgroup_namespace(namespace: Path) -> list[str]:
    """Enter a cgroup namespace, unless this process is in it; return what did not work.

    Beyond that of a container no group of v2 can be left, and kernels from 6.12 count the levels of
    cgroups from where the process is that makes a rule.
    """
    try:
        if not namespace.samefile(_OWN_CGROUP):
            _enter(namespace, _CGROUP)
    except OSError as err:
        return [f"{namespace}: {err.strerror}"]
    return []


def _enter(namespace: Path, kind: int) -> None:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, kind):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    finally:
        os.close(descriptor)


def drop_capabilities(kept: int = CAP_NET_ADMIN) -> None:
    """Keep one capability, for good.

    Raises:
        OSError: it is refused, as by a seccomp filter, and there are others.
    """
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != kept:
            _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)  # without CAP_SETPCAP it is refused
    bits = 1 << kept
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = struct.pack("6I", bits, bits, 0, 0, 0, 0)
    if _libc.capset(header, data):
        number = ctypes.get_errno()
        if _held() & ~bits:
            raise OSError(number, os.strerror(number), "capset")


def _held() -> int:
    """The capabilities that this process may use, one bit each; all if the kernel does not say."""
    found = ctypes.create_string_buffer(24)
    if _libc.capget(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), found):
        return -1
    _, low, _, _, high, _ = struct.unpack("6I", found.raw)
    return int(low | high << 32)
