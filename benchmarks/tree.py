"""A real kubepods tree of empty pods on this host's cgroup v1 controllers."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
QOS = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
CONTAINERS_PER_POD = 2


class NotHereError(Exception):
    """This host cannot run the benchmark; the message says what is missing."""


def check_controllers(controllers: Sequence[str] = CONTROLLERS) -> None:
    """Raise NotHereError unless cgroups can be made here."""
    if os.geteuid() != 0:
        raise NotHereError("wanted root to make cgroups, found another user; run as root")
    for controller in controllers:
        if not (ROOT / controller / "cgroup.procs").exists():
            raise NotHereError(f"wanted the cgroup v1 controller {controller}, found none mounted")


def check_host(controllers: Sequence[str] = CONTROLLERS) -> None:
    """Raise NotHereError if the host has pods already."""
    check_controllers(controllers)
    for controller in controllers:
        if (ROOT / controller / "kubepods").exists():
            found = ROOT / controller / "kubepods"
            raise NotHereError(f"{found} exists; this host runs pods, use another")


@contextlib.contextmanager
def pod_tree(pods: int, controllers: Sequence[str] = CONTROLLERS) -> Iterator[list[str]]:
    """Make the tree, yield the paths of its pod and container groups, and remove it again."""
    check_host(controllers)
    groups = []
    for number in range(pods):
        pod = f"{QOS[number % 3]}/pod{uuid.UUID(int=number)}"
        groups.append(pod)
        groups += [
            f"{pod}/{hashlib.sha256(f'{number}.{container}'.encode()).hexdigest()}"
            for container in range(CONTAINERS_PER_POD)
        ]
    made = [*QOS, *groups]
    try:
        for controller in controllers:
            for group in made:
                (ROOT / controller / group).mkdir(parents=True, exist_ok=True)
        yield groups
    finally:
        remove(made, controllers)


def remove(groups: list[str], controllers: Sequence[str] = CONTROLLERS) -> None:
    """Remove the groups, children first; a QoS class that has got another pod stays."""
    for group in sorted(groups, key=len, reverse=True):
        for controller in controllers:
            with contextlib.suppress(OSError):
                (ROOT / controller / group).rmdir()
