"""A model of a kernel: accepts CPU quota, burst, idleness, shares and cpusets of a small tree.

The rules are those of kernel/sched/core.c and kernel/cgroup/cpuset-v1.c; tests/cgroups checks them
on a real one.
"""

import errno
from dataclasses import dataclass

from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES, CPUSET_CPUS_WANTED

MOST = frozenset(range(8))
DEFAULT_SHARES = {1: 1024, 2: 100}  # on v2 the weight
IDLE_SHARES = {1: 3, 2: 0}
FIELDS = {
    CPU_QUOTA: "quota",
    CPU_BURST: "burst",
    CPU_IDLE: "idle",
    CPU_SHARES: "shares",
    CPUSET_CPUS_WANTED: "cpus",
}


@dataclass
class ModelGroup:
    """One cgroup. cpus empty: on v2 the parent's; shares: on v2 the weight."""

    quota: int = -1
    burst: int = 0
    idle: int = 0
    shares: int = 1024
    cpus: frozenset[int] = MOST
    busy: bool = False


class Refused(OSError):
    """The kernel says no."""

    def __init__(self, code: int) -> None:
        super().__init__(code, errno.errorcode[code])


class KernelModel:
    """A tree of groups by path, parents first."""

    def __init__(self, version: int, groups: dict[str, ModelGroup]) -> None:
        self.version = version
        self.groups = groups

    def get(self, resource: Resource, place: str):
        return getattr(self.groups[place], FIELDS[resource])

    def set(self, resource: Resource, place: str, value) -> None:
        """Write a value. Raises Refused with the kernel's errno."""
        group = self.groups[place]
        getattr(self, f"_check_{FIELDS[resource]}")(place, group, value)
        if resource is CPU_IDLE and value != group.idle:
            group.shares = (IDLE_SHARES if value else DEFAULT_SHARES)[self.version]
        setattr(group, FIELDS[resource], value)

    def above(self, place):
        """Groups above, the nearest first."""
        parts = place.split("/")
        paths = ["/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
        return [path for path in paths if path in self.groups]

    def _check_quota(self, place, group, value):
        if value != -1 and (value < 1000 or group.burst > value):
            raise Refused(errno.EINVAL)
        if self.version == 1:
            before, group.quota = group.quota, value
            try:
                self._check_hierarchy()
            finally:
                group.quota = before

    def _check_hierarchy(self):
        """No group has more than the nearest limited one above it."""
        for place, group in self.groups.items():
            above = [self.groups[p].quota for p in self.above(place)]
            limits = [quota for quota in above if quota != -1]
            if group.quota != -1 and limits and group.quota > min(limits):
                raise Refused(errno.EINVAL)

    def _check_burst(self, place, group, value):
        if group.quota != -1 and value > group.quota:
            raise Refused(errno.EINVAL)

    def _check_idle(self, place, group, value):
        if value not in (0, 1):
            raise Refused(errno.ERANGE)

    def _check_shares(self, place, group, value):
        if group.idle:
            raise Refused(errno.EINVAL)

    def _check_cpus(self, place, group, value):
        if self.version == 2:
            return
        if not value and group.busy:
            raise Refused(errno.ENOSPC)
        for child in self.groups:
            if self.above(child)[:1] == [place] and not self.groups[child].cpus <= value:
                raise Refused(errno.EBUSY)
        above = self.above(place)
        if above and not value <= self.groups[above[0]].cpus:
            raise Refused(errno.EACCES)
