"""Which kernel files a plugin may declare as its own: settings of controllers, and some sysctls."""

import re

from koordlet.host.cgroups.cgroupfs import V1_ONLY, V2_ONLY
from koordlet.host.resource import Root
from koordlet.host.resources import BY_NAME

LONGEST_NAME = 128  # characters
SYSCTL = "/proc/sys/"

_NAME = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./-]*", re.ASCII)
_BOTH = ("cpu", "cpuset", "hugetlb", "memory", "misc", "pids", "rdma")
_CGROUP = re.compile(rf"({'|'.join((*_BOTH, *V1_ONLY, *V2_ONLY))})(\.[A-Za-z0-9_-]+)+", re.ASCII)
_SYSCTL = re.compile(
    SYSCTL + r"(vm/[a-z0-9_]+|kernel/(sched_[a-z0-9_]+|numa_balancing[a-z0-9_]*|timer_migration"
    r"|threads-max|watchdog_thresh|perf_cpu_time_max_percent))",
    re.ASCII,
)
_COUNTER = "it counts or triggers something, and holds no setting that could be restored"
_ONE_WAY = "what it does cannot be undone by writing what was there before"
_MEMBERS = "it moves, ends or delegates processes and cgroups; only the kubelet may"
_PROGRAM = "the kernel runs what it names as root"
_SECURITY = "it is a protection of the node"
_DENIED = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"cgroup\..*|tasks|release_agent|notify_on_release", _MEMBERS),
        (
            r".*\.(stat|current|peak|events(\.local)?|failcnt|(max_)?usage(_.*)?|.*pressure"
            r"|reset_stats|memory_pressure.*|pressure_level)",
            _COUNTER,
        ),
        (
            r"memory\.(force_empty|reclaim|oom_control|kmem\..*|use_hierarchy|move_charge_.*)",
            _ONE_WAY,
        ),
        (
            r"cpuset\.(.*exclusive.*|mem_hardwall|cpus\.partition|memory_migrate)",
            "it takes CPUs or memory away from other cgroups",
        ),
        (
            SYSCTL + r"kernel/(core_pattern|core_pipe_limit|modprobe|hotplug|poweroff_cmd"
            r"|usermodehelper.*|.*_helper)",
            _PROGRAM,
        ),
        (
            SYSCTL + r"(kernel/(randomize_va_space|.*_restrict|perf_event_paranoid|sysrq|yama.*"
            r"|.*_disabled|seccomp.*)|vm/(mmap_min_addr|mmap_rnd.*|legacy_va_layout"
            r"|unprivileged_userfaultfd|memfd_noexec|hugetlb_shm_group))",
            _SECURITY,
        ),
        (SYSCTL + r".*panic.*", "it can stop the node"),
        (SYSCTL + r"vm/(drop_caches|compact_memory|stat_refresh)", _COUNTER),
        (
            SYSCTL + r"vm/(dirty_(background_)?(ratio|bytes)|overcommit_(ratio|kbytes))",
            "setting it clears another one, which would not be restored",
        ),
        (
            SYSCTL + r"net/.*",
            "it is of the network namespace of the process that writes, a pod's where koordlet "
            "runs in one",
        ),
    )
)


def _path(root: Root, name: str) -> str:
    return name if root is Root.CGROUP else f"/{root.value}/{name}"


_COVERED = {
    _path(file.root, name): row.name
    for row in BY_NAME.values()
    for file in row.files.values()
    for name in (file.name, *file.others)
}


def defect_of(name: object) -> str:
    """Return why a plugin may not declare a file, as what was found; "" if it may."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        return repr(name)[:LONGEST_NAME]
    for pattern, why in _DENIED:
        if pattern.fullmatch(name):
            return f"{name}: {why}"
    if known := _COVERED.get(name):
        return f"{name}, which is {known.upper()} of koordlet.plugin.resources; claim that"
    if _CGROUP.fullmatch(name) or _SYSCTL.fullmatch(name):
        return ""
    return f"{name}, which is neither"


def versions_of(name: str) -> dict[int, str]:
    """Return the controller of a file that may be declared, by cgroup version; "" for sysctls."""
    if name.startswith(SYSCTL):
        return {1: "", 2: ""}
    controller = name.partition(".")[0]
    if controller in V1_ONLY:
        return {1: controller}
    return {2: controller} if controller in V2_ONLY else {1: controller, 2: controller}
