"""The files of the audit log: what they are called, and which follows which."""

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MIB = 1 << 20
CURRENT = "audit.log"
FILE_BYTES = 2 * MIB  # at which a file is rotated, if there is room for two

_ROTATED = re.compile(r"audit-\d{4}(-\d\d){5}-[0-8]\.log")
_LAST = 8  # of the numbers that distinguish rotations of one second

FileIdentity = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Budget:
    """How much disk the log may take: files of file_bytes, the current one and those kept."""

    file_bytes: int
    rotated: int

    @classmethod
    def of(cls, mebibytes: int) -> "Budget":
        """Files of 2 MiB; of half the budget where it is less than two of them.

        So a rotation never loses all there is.
        """
        file_bytes = min(FILE_BYTES, mebibytes * MIB // 2)
        return cls(file_bytes, mebibytes * MIB // file_bytes - 1)


def rotated(directory: Path) -> list[str]:
    """Names of the rotated files, newest first.

    Raises:
        OSError: the directory cannot be read.
    """
    names = (entry.name for entry in os.scandir(directory))
    return sorted(filter(_ROTATED.fullmatch, names), reverse=True)


def rotated_name(directory: Path, wall: float) -> str:
    """Return the name of a file rotated now; the ninth of one second replaces the eighth."""
    local = datetime.fromtimestamp(wall, UTC).astimezone()
    moment = local.strftime("%Y-%m-%d-%H-%M-%S")
    names = [f"audit-{moment}-{number}.log" for number in range(_LAST + 1)]
    return next((name for name in names if not (directory / name).exists()), names[-1])


def older(directory: Path, name: str, identity: FileIdentity | None) -> str:
    """Name of the next file before the one of that name; "": it is the oldest.

    identity finds the file although it has been rotated meanwhile; None: it is not open.

    Raises:
        OSError: the directory cannot be read.
    """
    names = [CURRENT, *rotated(directory)]
    identities = [_identity(directory / each) for each in names]
    if identity is not None and identity in identities:
        rest = names[identities.index(identity) + 1 :]
    else:
        rest = [each for each in names[1:] if name == CURRENT or each < name]
    return rest[0] if rest else ""


def _identity(path: Path) -> FileIdentity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
