"""An object in a file: bounded, checked as a whole, read again when it changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from koord.util.documents import decode
from koord.util.errors import InvalidObject
from koord.util.filewatch import FileReadError, FileWatch

T = TypeVar("T")

MAX_BYTES = 16 << 20  # a PodList of 1000 pods has half of it


class ObjectFile(Generic[T]):
    """Reads a file of JSON or YAML whenever it has changed. Not thread-safe.

    problem says why the file cannot be used; empty: it can.
    """

    def __init__(
        self,
        path: Path,
        parse: Callable[[object], T],
        *,
        max_bytes: int = MAX_BYTES,
        half_characters: bool = False,
    ) -> None:
        """parse raises InvalidObject. half_characters: parse itself refuses lone surrogates."""
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._half_characters = half_characters
        self._watch = FileWatch(path)
        self._due = False
        self._was_read = False
        self.problem = ""

    def poll(self) -> T | None:
        """Return the object if the file holds a new one; None: nothing new. Blocks.

        A changed file is read by the first poll that finds it unchanged since the poll before: half
        of a list may be a valid list. Only the first reading does not wait.
        """
        if not self._path.exists():
            self.problem = f"{self._path}: wanted a file, found nothing; write it"
            self._watch.again()
            return None
        if self._watch.changed():
            self._due = True
            if self._was_read:
                return None
        return self._read() if self._due else None

    def _read(self) -> T | None:
        self._due = False
        try:
            data = self._watch.read(self._max_bytes)
            where, half = str(self._path), self._half_characters
            found = self._parse(decode(data, where, half_characters=half))
        except FileReadError as err:
            self.problem = str(err)
            self._due = self._may_become_readable()
            return None
        except InvalidObject as err:
            text = str(err)
            where = str(self._path)
            self.problem = text if text.startswith(where) else f"{where}: {text}"
            return None
        finally:
            self._was_read = True
        self.problem = ""
        return found

    def _may_become_readable(self) -> bool:
        """Whether to try again: permissions may change without a change of the file's times."""
        try:
            return self._path.stat().st_size <= self._max_bytes
        except OSError:
            return True
