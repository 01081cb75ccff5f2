"""Pods and containers as the cgroup tree shows them, found by cheap repeated scans."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from koord.api.qos import KubeQoS
from koord.util.clock import Clock
from koordlet.host.cgroups.hierarchies import KubeRoots, Listing, ListingChange, list_dirs
from koordlet.host.cgroups.layout import Layout

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
