"""Finds the kubepods cgroups of a host, wherever a kubelet is configured to make them."""

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.cgroups.listing import Listing, list_dirs

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
        self._look_at_top(now)
        others = self._listing.inodes.keys() - self._top.keys()
        if self._search_is_due(now, others):
            found = sorted(self._search(sorted(others)))
            self._deep = {root: self._deep.get(root, self._deep_at) for root in found}
            self._deep_at = None if self.truncated else now
            self._searched_at, self._others = now, others
        both = {**self._top, **self._deep}
        return {layout: both[root] for root in sorted(both) if (layout := layout_of(root))}

    def _look_at_top(self, now: float) -> None:
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
