"""One line of `koordletctl doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this host. needed_by names gates; empty: every run measures with it."""

    area: str
    name: str
    supported: bool
    needed_by: tuple[str, ...] = ()
    detail: str = ""
    fix: str = ""  # what would provide it: kernel option, mount or capability; "" when supported
