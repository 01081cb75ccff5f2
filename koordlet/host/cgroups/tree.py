"""The cgroup tree: its roots, and pods and containers as it shows them, by cheap repeated scans."""

import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from koord.api.qos import KubeQoS
from koord.util.clock import Clock
from koord.util.documents import decode
from koord.util.errors import InvalidObject
from koord.util.logs import get_logger
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_up_to
from koordlet.host.processes import is_trusted, system_processes
from koordlet.host.procfiles import parse_cmdline

V1, V2 = 1, 2
V1_ONLY, V2_ONLY = ("blkio", "net_cls", "net_prio"), ("io",)  # controllers
_UNLISTED = frozenset({"perf_event"})  # controllers of every v2 host that it does not list


class CgroupFs:
    """The cgroup file systems below one directory, as they were when this object was made.

    A host is v2 when the directory itself is the unified hierarchy; else v1, with one directory
    per controller; hybrid when a unified hierarchy is mounted beside them ("unified").

    Source: systemd, docs/CGROUP_DELEGATION (legacy, hybrid and unified set-up).
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unified = _unified(root)
        self._v2_controllers = _controllers(self.unified) if self.unified else frozenset[str]()
        self._v1 = {} if self.unified == root else _v1_hierarchies(root)

    @property
    def flavour(self) -> str:
        """One of "v1", "hybrid" and "v2"."""
        if self.unified is None:
            return "v1"
        return "v2" if self.unified == self.root else "hybrid"

    def version(self, controller: str) -> int:
        """Return 1 or 2; 1 for a controller that is nowhere on a host that is not pure v2.

        "" means the files that every v2 group has, whichever controllers are on.
        """
        if self.unified == self.root:
            return V2
        if controller in self._v1 or self.unified is None:
            return V1
        return V2 if controller in self._v2_controllers or not controller else V1

    def controllers(self) -> dict[str, int]:
        """Return the version of each controller that the kernel lists."""
        return {**dict.fromkeys(self._v2_controllers, V2), **dict.fromkeys(self._v1, V1)}

    def has(self, controller: str) -> bool:
        """Return whether a controller is available here."""
        unlisted = self.unified == self.root and controller in _UNLISTED
        return unlisted or controller in self.controllers()

    def hierarchy(self, controller: str, version: int) -> Path:
        """Return the directory of the root group, whether or not it is there."""
        if version == V2:
            return self.unified or self.root
        return self._v1.get(controller, self.root / controller)

    def hierarchies(self) -> list[Path]:
        """Return the root directories of all hierarchies."""
        return [*self._v1.values(), *([self.unified] if self.unified else [])]


def subgroups(group: Path) -> list[str]:
    """Return the sorted names of the groups right below one; none when it has ended."""
    try:
        with os.scandir(group) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _unified(root: Path) -> Path | None:
    for directory in (root, root / "unified"):
        if (directory / "cgroup.controllers").exists():
            return directory
    return None


def _controllers(unified: Path) -> frozenset[str]:
    try:
        return frozenset((unified / "cgroup.controllers").read_text().split())
    except (OSError, ValueError):
        return frozenset()


def _v1_hierarchies(root: Path) -> dict[str, Path]:
    """Directories by controller. Controllers that are mounted together ("cpu,cpuacct") often,
    but not always, have a symbolic link each.
    """
    try:
        directories = sorted(entry for entry in root.iterdir() if entry.is_dir())
    except OSError:
        return {}
    return {
        controller: directory
        for directory in directories
        if directory.name != "unified"
        for controller in directory.name.split(",")
    }


MAX_CONFIG = 64 << 10  # bytes; a KubeletConfiguration has a few thousand

log = get_logger("koordlet.host")


def driver_of_kubelet(proc: Path) -> Driver | None:
    """Return the driver from the kubelet's arguments or config file; None without a kubelet.

    A kubelet that names none uses cgroupfs. None also when it names one that does not exist, or
    its config file cannot be used: it is larger than 64 KiB, no regular file, not root's or ours,
    or others may write it. That is logged once.

    Source: Kubernetes, --cgroup-driver and KubeletConfiguration.cgroupDriver.
    """
    for process in system_processes(proc, "kubelet"):
        try:
            arguments = parse_file(process.directory / "cmdline", parse_cmdline)
            return _driver(process.directory, arguments)
        except KernelFileError:
            continue  # it has ended meanwhile
        except (OSError, InvalidObject, ValueError) as err:
            _log_unknown_driver(process.pid, str(err))
    return None


def _driver(process: Path, arguments: list[str]) -> Driver:
    """Raises OSError, InvalidObject, ValueError, or KernelFileError: it has ended."""
    named = _flag(arguments, "--cgroup-driver")
    config = _flag(arguments, "--config")
    if not named and config:
        named = _driver_in_config(_read(_path_in_root_of(process, config)), config)
    return Driver(named or Driver.CGROUPFS.value)


def _flag(arguments: list[str], flag: str) -> str:
    """Return the last value of a flag; "" when it is not there."""
    value = ""
    for position, argument in enumerate(arguments):
        name, equals, rest = argument.partition("=")
        if name == flag:
            value = rest if equals else "".join(arguments[position + 1 : position + 2])
    return value


def _path_in_root_of(process: Path, path: str) -> Path:
    """Return a path that leads into the process's own mount namespace."""
    return process / "root" / path.lstrip("/") if path.startswith("/") else process / "cwd" / path


def _read(path: Path) -> bytes:
    """Return a file of root or of our own user, which no other may write.

    Links are followed, as the kubelet does, but what is opened at their end is what is judged.

    Raises:
        OSError, ValueError: it cannot be opened, or is not such a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("wanted a regular file as the kubelet's --config")
        if not is_trusted(found.st_uid) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError(
                "wanted a file of root that no other may write as the kubelet's --config, found "
                f"user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
            )
        data = read_up_to(descriptor, MAX_CONFIG + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_CONFIG:
        raise ValueError(f"wanted at most {MAX_CONFIG} bytes as the kubelet's --config")
    return data


def _driver_in_config(data: bytes, where: str) -> str:
    """Return the value of cgroupDriver in YAML or JSON; "" when it is not there."""
    config = decode(data, where)
    if not isinstance(config, dict):
        raise InvalidObject(where, wanted="a KubeletConfiguration", found=config)
    return str(config.get("cgroupDriver") or "")


@lru_cache(maxsize=16)
def _log_unknown_driver(pid: int, error: str) -> None:
    """Log it once: every view of the host asks."""
    log.warning("kubelet_driver.not_found", pid=pid, error=error)


class ListingChange(NamedTuple):
    """Changes of a listing since the one before. A child made anew is both gone and fresh."""

    gone: frozenset[str]
    fresh: frozenset[str]
    absent_at: float | None  # when the fresh ones were not there yet, monotonic; None: unknown

    def __bool__(self) -> bool:
        return bool(self.gone or self.fresh)


@dataclass(slots=True)
class Listing:
    """Inode numbers of the directories in one directory, by name.

    The kernel never reuses the inode number of a cgroup, so it shows whether one was made anew.
    """

    listed_at: float | None  # monotonic; before the first listing: when the directory was absent
    inodes: dict[str, int] = field(default_factory=dict)
    _nlink: int = 0
    _checked_at: float | None = None

    @property
    def is_new(self) -> bool:
        """Whether there was no listing yet."""
        return self._checked_at is None

    def is_stale(self, nlink: int, now: float) -> bool:
        """Whether the link count shows that something changed.

        A count below 2 means nothing: some file systems do not count directories.
        """
        if nlink != self._nlink or nlink < 2:
            return True
        self._checked_at = now
        return False

    def update(self, found: dict[str, int], nlink: int, now: float) -> ListingChange:
        """Take a new listing; nlink must have been read before it was made."""
        old = self.inodes
        gone = frozenset(name for name, inode in old.items() if found.get(name) != inode)
        fresh = frozenset(name for name, inode in found.items() if old.get(name) != inode)
        # The link count vouches for when it was checked, unless something may have been replaced.
        absent_at = self.listed_at if gone or self.is_new else self._checked_at
        self.inodes, self._nlink = found, nlink
        self.listed_at = self._checked_at = now
        return ListingChange(gone, fresh, absent_at)


def list_dirs(directory: str | int) -> dict[str, int]:
    """Return inode numbers of the directories in a directory (path or descriptor), by name.

    Raises:
        OSError: the directory cannot be listed.
    """
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries if _is_dir(entry)}


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # went away; only asked of the file system when the listing did not show it
        return False


TOP_INTERVAL = 2.0  # seconds between listings of the first level when nothing seems to change
SEARCH_INTERVAL = 10.0  # seconds between searches below the first level
SEARCH_DEPTH = 5  # docker/<id>/kubelet.slice/kubelet-kubepods.slice is four levels deep
SEARCH_DIRS = 1000  # directories one search lists at most; 15 ms


def layout_of(root: str) -> Layout | None:
    """Return the layout below a cgroup, given its path, if its name is that of a kubepods cgroup.

    These are kubepods and kubepods.slice, any name that starts so, and what systemd makes of a
    kubelet with --cgroup-root: <root>-kubepods.slice.
    """
    name = root.rpartition("/")[2]
    if name.endswith(".slice"):
        stem = name.removesuffix(".slice")
        if stem.startswith("kubepods") or stem.endswith("-kubepods"):
            return Layout(Driver.SYSTEMD, root)
    elif name.startswith("kubepods"):
        return Layout(Driver.CGROUPFS, root)
    return None


class KubeRoots:
    """The kubepods cgroups below a directory.

    Those at the first level are looked for each time; the rest of the tree is searched to a
    bounded depth and number of directories every now and then, as new roots are rare there.
    """

    def __init__(self, base: Path) -> None:
        self._base = str(base)
        self._top: dict[str, float | None] = {}  # path of a root -> when it was seen absent
        self._deep: dict[str, float | None] = {}
        self._others: set[str] = set()
        self._listing = Listing(listed_at=None)
        self._deep_at: float | None = None
        self._searched_at = float("-inf")
        self.truncated = False  # the latest search gave up before it had seen everything

    def find(self, now: float) -> dict[Layout, float | None]:
        """Return the layouts of all roots, each with the time of a search that did not see it.

        now is monotonic. The time is None when the root was there at the first search.

        Raises:
            OSError: the base directory cannot be listed.
        """
        self._scan_top_level(now)
        others = self._listing.inodes.keys() - self._top.keys()
        if self._search_is_due(now, others):
            found = sorted(self._search(sorted(others)))
            self._deep = {root: self._deep.get(root, self._deep_at) for root in found}
            self._deep_at = None if self.truncated else now
            self._searched_at, self._others = now, others
        both = {**self._top, **self._deep}
        return {layout: both[root] for root in sorted(both) if (layout := layout_of(root))}

    def _scan_top_level(self, now: float) -> None:
        nlink = os.stat(self._base).st_nlink
        is_due = now - (self._listing.listed_at or 0.0) >= TOP_INTERVAL
        if not self._listing.is_stale(nlink, now) and not is_due:
            return
        change = self._listing.update(list_dirs(self._base), nlink, now)
        for name in change.gone:
            self._top.pop(name, None)
        self._top.update({name: change.absent_at for name in change.fresh if layout_of(name)})

    def _search_is_due(self, now: float, others: set[str]) -> bool:
        return others != self._others or now - self._searched_at >= SEARCH_INTERVAL

    def _search(self, names: list[str]) -> Iterator[str]:
        """Breadth first, so that what is near the top is found even in a huge tree."""
        self.truncated = False
        queue = deque((name, 1) for name in names)
        listed = 0
        while queue:
            path, depth = queue.popleft()
            if listed == SEARCH_DIRS:
                self.truncated = True
                return
            listed += 1
            for child in _children(f"{self._base}/{path}"):
                below = f"{path}/{child}"
                if layout_of(below):
                    yield below
                elif depth + 1 < SEARCH_DEPTH:
                    queue.append((below, depth + 1))


def _children(directory: str) -> list[str]:
    """Names of the directories below; none when it went away or may not be listed."""
    try:
        return sorted(list_dirs(directory))
    except OSError:
        return []


_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ContainerDir:
    """The cgroup of a container or sandbox, which look the same from outside.

    absent_at is the monotonic time of a scan at which it was not there yet; None: unknown.
    """

    cgroup: str
    absent_at: float | None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.cgroup.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PodDir:
    """The cgroup of a pod; absent_at as with ContainerDir."""

    uid: str  # with dashes; of a static pod the hash of its manifest
    kube_qos: KubeQoS
    layout: Layout
    cgroup: str
    containers: tuple[ContainerDir, ...]
    absent_at: float | None


@dataclass(frozen=True, slots=True)
class TreeScan:
    """The result of one scan. problems are sentences for people; empty: all was seen."""

    pods: tuple[PodDir, ...]
    layouts: tuple[Layout, ...]  # of the kubepods cgroups there are
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class PodScanState:
    """The cgroup of a pod, from scan to scan."""

    uid: str
    cgroup: str
    absent_at: float | None
    turn: int
    listing: Listing = field(init=False)
    containers: dict[str, ContainerDir] = field(default_factory=dict)
    left_out: int = 0

    def __post_init__(self) -> None:
        self.listing = Listing(self.absent_at)

    def update(self, found: dict[str, int], nlink: int, now: float, free: int) -> bool:
        """Take a new listing. free is how many containers may be added."""
        change = self.listing.update(found, nlink, now)
        if not change and not self.left_out:
            return False
        old = self.containers
        kept = {name: child for name, child in old.items() if name not in change.gone}
        wanted = sorted(name for name in found if name not in kept and _is_container(name))
        free += len(old) - len(kept)
        for name in wanted[: max(free, 0)]:
            absent_at = change.absent_at if name in change.fresh else None
            kept[name] = ContainerDir(f"{self.cgroup}/{name}", absent_at)
        self.left_out = max(len(wanted) - max(free, 0), 0)
        self.containers = kept
        return kept != old

    def snapshot(self, level: "QoSScanState") -> PodDir:
        containers = tuple(self.containers[name] for name in sorted(self.containers))
        return PodDir(self.uid, level.qos, level.layout, self.cgroup, containers, self.absent_at)


class QoSScanState:
    """The cgroup of one QoS class with its pods, from scan to scan."""

    def __init__(self, layout: Layout, qos: KubeQoS, *, listed_at: float | None) -> None:
        self.layout = layout
        self.qos = qos
        self.cgroup = layout.qos_dir(qos)
        self.listing = Listing(listed_at)
        self.pods: dict[str, PodScanState] = {}
        self.waiting: dict[str, str] = {}  # uid by name of pods seen but not taken up
        self.latest = ListingChange(frozenset(), frozenset(), None)

    def update(self, found: dict[str, int], nlink: int, now: float) -> bool:
        """Take a new listing: forget pods that are gone, let new ones wait."""
        self.latest = change = self.listing.update(found, nlink, now)
        for name in change.gone:
            self.pods.pop(name, None)
            self.waiting.pop(name, None)
        for name in change.fresh:
            if uid := self._pod_uid(name):
                self.waiting[name] = uid
        return bool(change.gone)

    def _pod_uid(self, name: str) -> str | None:
        try:
            uid = self.layout.pod_uid(name)
        except ValueError:
            return None
        return uid if _UID.fullmatch(uid) else None


def _is_container(name: str) -> bool:
    """CRI-O and podman run a monitor process in a cgroup of its own beside each container."""
    return "conmon" not in name and name.isascii() and name.isprintable()


MAX_PODS = 1000  # the kubelet's own default limit is 110
MAX_CONTAINERS = 5000  # a pod that makes cgroups without end must not fill the memory
CHECK_EVERY_SCANS = 2  # the link count of a pod is looked at once in so many scans
CLASS_DIRS_EVERY_SCANS = 2  # a QoS class is listed at least once in so many scans
LIST_EVERY_SCANS = (
    10  # a pod, or a class with very many pods, is listed at least once in so many scans
)
MANY_PODS = 500  # of a class: listing it takes longer than a scan should


class CgroupTree:
    """Scans one cgroup hierarchy for pods. Paths it returns are relative to base.

    base is the unified hierarchy, or any v1 controller that the kubelet uses: it makes the same
    directories in each. Not thread-safe: one scan at a time.
    """

    def __init__(
        self,
        base: Path,
        clock: Clock,
        *,
        max_pods: int = MAX_PODS,
        max_containers: int = MAX_CONTAINERS,
    ) -> None:
        self._base = base
        self._clock = clock
        self._max_pods = max_pods
        self._max_containers = max_containers
        self._roots = KubeRoots(base)
        self._levels: dict[Layout, tuple[QoSScanState, ...]] = {}
        self._turn = 0
        self._admitted = 0
        self._room = max_containers  # how many containers this scan may add
        self._problems: list[str] = []  # of this scan
        self._scan = TreeScan((), ())

    def scan(self) -> TreeScan:
        """Return the pods there are now; the very same object when nothing changed.

        A directory that cannot be listed keeps what it was last known to hold.
        """
        now = self._clock.monotonic()
        self._turn = (self._turn + 1) % LIST_EVERY_SCANS
        self._problems = []
        self._room = self._max_containers - sum(len(pod.containers) for pod in self._all_pods())
        changed = self._find_roots(now)
        for level in self._all_levels():
            try:
                changed |= self._scan_level(level, now)
            except OSError as err:
                self._log_problems(level.cgroup, err)
        self._problems += self._excess()
        if changed or tuple(self._problems) != self._scan.problems:
            self._scan = TreeScan(self._pods(), tuple(self._levels), tuple(self._problems))
        return self._scan

    def class_dirs(self) -> Iterator[Path]:
        """Yield the directories, as of the latest scan, that pods' cgroups are made in."""
        for level in self._all_levels():
            yield self._base / level.cgroup

    def _find_roots(self, now: float) -> bool:
        try:
            found = self._roots.find(now)
        except OSError as err:
            self._log_problems("", err)
            return False
        if self._roots.truncated:
            self._problems.append(
                f"{self._base}: wanted to search all of it for kubepods cgroups, "
                "found too many directories; only those near the top were searched"
            )
        changed = found.keys() != self._levels.keys()
        self._levels = {
            layout: self._levels.get(layout)
            or tuple(QoSScanState(layout, qos, listed_at=absent_at) for qos in KubeQoS)
            for layout, absent_at in found.items()
        }
        return changed

    def _scan_level(self, level: QoSScanState, now: float) -> bool:
        try:
            fd = os.open(self._base / level.cgroup, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # the kubelet makes the QoS classes when it starts
            return level.update({}, 2, now)
        try:
            nlink = os.fstat(fd).st_nlink
            turns = (
                CLASS_DIRS_EVERY_SCANS
                if len(level.listing.inodes) < MANY_PODS
                else LIST_EVERY_SCANS
            )
            changed = False
            if level.listing.is_stale(nlink, now) or self._turn % turns == 0:
                changed = level.update(list_dirs(fd), nlink, now)
            changed |= self._admit(level)
            for name, pod in level.pods.items():
                if pod.listing.is_new or (pod.turn + self._turn) % CHECK_EVERY_SCANS == 0:
                    changed |= self._scan_pod(pod, name, fd, now)
        finally:
            os.close(fd)
        return changed

    def _admit(self, level: QoSScanState) -> bool:
        """Take up pods that wait, up to the maximum."""
        fresh, absent_at = level.latest.fresh, level.latest.absent_at
        if not level.waiting:
            return False
        free = self._max_pods - sum(len(other.pods) for other in self._all_levels())
        if free <= 0:
            return False
        for name in sorted(level.waiting)[:free]:
            self._admitted += 1
            level.pods[name] = PodScanState(
                level.waiting.pop(name),
                f"{level.cgroup}/{name}",
                absent_at if name in fresh else None,
                turn=self._admitted % LIST_EVERY_SCANS,
            )
        return True

    def _scan_pod(self, pod: PodScanState, name: str, parent: int, now: float) -> bool:
        try:
            nlink = os.stat(name, dir_fd=parent, follow_symlinks=False).st_nlink
            if not pod.listing.is_stale(nlink, now) and self._turn != pod.turn:
                return False
            names = _list_below(name, parent)
        except FileNotFoundError:
            return False  # just removed: its parent's next listing does not have it
        except OSError as err:
            self._log_problems(pod.cgroup, err)
            return False
        before = len(pod.containers)
        changed = pod.update(names, nlink, now, self._room)
        self._room -= len(pod.containers) - before
        return changed

    def _log_problems(self, cgroup: str, err: OSError) -> None:
        self._problems.append(
            f"{self._base / cgroup}: wanted to list cgroups, found {err.strerror or err!r}; "
            "check --cgroup-root-dir and the permissions of koordlet"
        )

    def _excess(self) -> Iterator[str]:
        pods = sum(len(level.waiting) for level in self._all_levels())
        if pods:
            yield _limit_sentence("pods", self._max_pods, pods)
        containers = sum(pod.left_out for pod in self._all_pods())
        if containers:
            yield _limit_sentence("containers", self._max_containers, containers)

    def _pods(self) -> tuple[PodDir, ...]:
        """All pods; of two cgroups of one pod the one with containers, else the first."""
        pods: dict[str, PodDir] = {}
        for level in self._all_levels():
            for pod in level.pods.values():
                if pod.uid not in pods or not pods[pod.uid].containers:
                    pods[pod.uid] = pod.snapshot(level)
        return tuple(sorted(pods.values(), key=lambda pod: pod.cgroup))

    def _all_levels(self) -> Iterator[QoSScanState]:
        for levels in self._levels.values():
            yield from levels

    def _all_pods(self) -> Iterator[PodScanState]:
        for level in self._all_levels():
            yield from level.pods.values()


def _list_below(name: str, parent: int) -> dict[str, int]:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        return list_dirs(fd)
    finally:
        os.close(fd)


def _limit_sentence(what: str, limit: int, excess: int) -> str:
    return (
        f"cgroup tree: wanted at most {limit} {what}, found {excess} more, which are not measured; "
        "remove unused cgroups"
    )


def reference_hierarchy(cgroup_root: Path) -> Path:
    """Return the hierarchy to scan: the unified one, or the v1 controller that is most certain."""
    if not (cgroup_root / "cgroup.controllers").exists():
        for controller in ("cpu", "cpuacct", "memory"):
            if (cgroup_root / controller).is_dir():
                return cgroup_root / controller
    return cgroup_root
