"""The state that scans of the cgroup tree keep, and their results."""

import re
from dataclasses import dataclass, field

from koord.api.qos import KubeQoS
from koordlet.host.cgroups.layout import Layout
from koordlet.host.cgroups.listing import Listing, ListingChange

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
class PodTrack:
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

    def update(self, found: dict[str, int], nlink: int, now: float, room: int) -> bool:
        """Take a new listing. room is how many containers may be added."""
        change = self.listing.update(found, nlink, now)
        if not change and not self.left_out:
            return False
        old = self.containers
        kept = {name: child for name, child in old.items() if name not in change.gone}
        wanted = sorted(name for name in found if name not in kept and _is_container(name))
        room += len(old) - len(kept)
        for name in wanted[: max(room, 0)]:
            absent_at = change.absent_at if name in change.fresh else None
            kept[name] = ContainerDir(f"{self.cgroup}/{name}", absent_at)
        self.left_out = max(len(wanted) - max(room, 0), 0)
        self.containers = kept
        return kept != old

    def snapshot(self, level: "QoSTrack") -> PodDir:
        containers = tuple(self.containers[name] for name in sorted(self.containers))
        return PodDir(self.uid, level.qos, level.layout, self.cgroup, containers, self.absent_at)


class QoSTrack:
    """The cgroup of one QoS class with its pods, from scan to scan."""

    def __init__(self, layout: Layout, qos: KubeQoS, *, listed_at: float | None) -> None:
        self.layout = layout
        self.qos = qos
        self.cgroup = layout.qos_dir(qos)
        self.listing = Listing(listed_at)
        self.pods: dict[str, PodTrack] = {}
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
