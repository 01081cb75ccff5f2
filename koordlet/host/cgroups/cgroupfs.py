"""Finds the cgroup version of each controller, and the mount point of its hierarchy."""

import os
from pathlib import Path

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
