"""Contents of a directory of cgroups, requested often and listed seldom.

Measured on Linux 6.18: cgroup directories keep the modification time of the moment their inode was
loaded, but st_nlink always is the number of children plus 2. So a directory is worth listing when
st_nlink changed; and, because one child may have replaced another, now and then.
"""

import os
from dataclasses import dataclass, field
from typing import NamedTuple


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
