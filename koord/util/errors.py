"""The exception family of the daemons: every message is meant to be read by a person."""

import errno
import os

MAX_ERROR_LENGTH = 1000  # characters of an error that is not of ours


class KoordError(Exception):
    """Base of all errors that a daemon raises on purpose.

    The message says what was wanted, what was found and what to do about it.
    """


class OptionError(KoordError):
    """A flag, config file entry or environment variable has an unusable value."""

    def __init__(self, option: str, found: object, hint: str) -> None:
        super().__init__(f"{option}: found {found!r}; {hint}")
        self.option = option
        self.found = found
        self.hint = hint


class InvalidObject(KoordError):
    """An object from outside (file, API server, annotation) does not have the expected shape."""

    def __init__(self, where: str, *, wanted: str, found: object) -> None:
        where = _writable(where)
        super().__init__(f"{where}: wanted {wanted}, found {_short(found)}")
        self.where = where


class Unavailable(KoordError):
    """Something that this daemon does without, for example the API server when standalone."""


class UnsafeFile(PermissionError):
    """A file or directory that another user can change, or that is not what it should be.

    It is rejected by name and left as it is. strerror says what was found, hint what to do.
    """

    def __init__(self, path: "str | os.PathLike[str]", found: str, hint: str) -> None:
        super().__init__(errno.EPERM, found, os.fspath(path))
        self.hint = hint

    def __str__(self) -> str:
        return (
            f"{self.filename}: wanted what only root and this user can change, "
            f"found {self.strerror}; {self.hint}"
        )


def error_text(error: BaseException) -> str:
    """Return an error as one text for people: one of ours says it itself, any other by its type.

    KeyError('gone') would only say 'gone', and a TimeoutError nothing. Of foreign errors at most
    MAX_ERROR_LENGTH characters are kept; one whose text cannot be had is its type alone.
    """
    try:
        text = str(error) if isinstance(error, KoordError | OSError) else ""
        if isinstance(error, KoordError):
            return _writable(text or repr(error))
        text = f"{type(error).__name__}: {text}" if text else repr(error)
    except Exception:  # of a class of a third party's
        return type(error).__name__
    return _writable(text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…")


def _short(found: object, limit: int = 120) -> str:
    try:
        text = found if isinstance(found, str) else repr(found)
    except RecursionError:  # JSON nested almost as deep as it can be read
        text = f"a very deep {type(found).__name__}"
    return _writable(text if len(text) <= limit else text[: limit - 1] + "…")


def _writable(text: str) -> str:
    """The text with half characters, which JSON can say but no log can hold, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
