"""A real kubepods tree of empty pods on this host's cgroup v1 controllers."""

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
QOS = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
CONTAINERS_PER_POD = 2


class NotHereError(Exception):
    """This host cannot run the benchmark; the message says what is missing."""


def check_controllers() -> None:
    """Raise NotHereError unless cgroups can be made here."""
    if os.geteuid() != 0:
        raise NotHereError("wanted root to make cgroups, found another user; run as root")
    for controller in CONTROLLERS:
        if not (ROOT / controller / "cgroup.procs").exists():
            raise NotHereError(f"wanted the cgroup v1 controller {controller}, found none mounted")


def check_host() -> None:
    """Raise NotHereError if the host has pods already."""
    check_controllers()
    for controller in CONTROLLERS:
        if (ROOT / controller / "kubepods").exists():
            found = ROOT / controller / "kubepods"
            raise NotHereError(f"{found} exists; this host runs pods, use another")


@contextlib.contextmanager
def pod_tree(pods: int) -> Iterator[list[str]]:
    """Make the tree, yield the paths of its pod and container groups, and remove it again."""
    check_host()
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
        for controller in CONTROLLERS:
            for group in made:
                (ROOT / controller / group).mkdir(parents=True, exist_ok=True)
        yield groups
    finally:
        remove(made)


def remove(groups: list[str]) -> None:
    """Remove the groups, children first; a QoS class that has got another pod stays."""
    for group in sorted(groups, key=len, reverse=True):
        for controller in CONTROLLERS:
            with contextlib.suppress(OSError):
                (ROOT / controller / group).rmdir()
