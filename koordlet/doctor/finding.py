"""One line of `koordletctl doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this host. needed_by names gates; empty: every run measures with it.

    supported is None where it could not be found out.
    """

    area: str
    name: str
    supported: bool | None
    needed_by: tuple[str, ...] = ()
    detail: str = ""
    fix: str = ""  # what would provide it: kernel option, mount or capability; "" when supported
