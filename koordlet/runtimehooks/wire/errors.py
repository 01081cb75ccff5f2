"""What is wrong with bytes from the runtime."""

from koord.util.errors import KoordError


class WireError(KoordError):
    """Bytes that are not what the protocol allows; the connection they came over is of no use."""


def malformed(what: str, wanted: str, found: object) -> WireError:
    """Return the error for a part of a message."""
    return unusable(f"{what}: wanted {wanted}, found {found!r:.80}")


def unusable(problem: str) -> WireError:
    """Return the error for bytes with a problem."""
    return WireError(f"{problem}; the connection is closed and made anew")
