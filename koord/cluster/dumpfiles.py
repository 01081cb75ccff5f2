"""The files of a dump: one file, or the files of a directory."""

import os
from collections.abc import Iterator
from pathlib import Path

from koord.cluster.dump import Dump, DumpReader
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded

LARGEST_FILE = 1 << 30  # bytes; 150,000 pods as kubectl prints them
LARGEST_DUMP = 2 << 30  # bytes of all files
MOST_FILES = 1000
SUFFIXES = (".json", ".yaml", ".yml")


def read_dump(path: Path) -> Dump:
    """Return the cluster of a file, or of a directory's files that end in one of SUFFIXES.

    In a directory, in the order of their names; hidden files are passed over. Links, devices and
    files that are too large or cannot be read are among the dump's rejections. The path itself may
    be a link.

    Raises:
        OptionError: the path cannot be read, or has no file of a dump.
    """
    if not path.is_dir():
        return _read_file(path)
    reader = DumpReader()
    files, left = 0, LARGEST_DUMP
    for name in _names(path):
        files += 1
        try:
            data = read_bounded(path / name, min(left, LARGEST_FILE), follow_links=False)
        except FileReadError as err:
            reader.reject(_unreadable(name, err))
            continue
        left -= len(data)
        reader.read(data, name)
    if not files:
        raise OptionError(str(path), "no file of a dump", f"wanted one of {', '.join(SUFFIXES)}")
    return reader.dump


def _read_file(path: Path) -> Dump:
    reader = DumpReader()
    try:
        data = read_bounded(path, LARGEST_FILE)
    except FileReadError as err:
        hint = "name a file with what `kubectl get nodes,pods,… -A -o json` printed, or a directory"
        raise OptionError(str(path), err.found, hint) from err
    reader.read(data, path.name)
    return reader.dump


def _names(path: Path) -> Iterator[str]:
    try:
        found = sorted(os.listdir(path))
    except OSError as err:
        raise OptionError(str(path), err.strerror or str(err), "make it readable") from err
    names = [name for name in found if name.endswith(SUFFIXES) and not name.startswith(".")]
    if len(names) > MOST_FILES:
        raise OptionError(str(path), f"{len(names)} files", f"wanted at most {MOST_FILES}")
    yield from names


def _unreadable(name: str, err: FileReadError) -> InvalidObject:
    return InvalidObject(name, wanted="a regular file of bounded size, no link", found=err.found)
