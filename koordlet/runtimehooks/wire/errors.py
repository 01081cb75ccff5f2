"""What is wrong with bytes from the runtime."""

from koord.util.errors import KoordError


class WireError(KoordError):
    """Bytes that are not what the protocol allows; the connection they came over is of no use."""


def malformed(what: str, wanted: str, found: object) -> WireError:
    """Return the error for a part of a message."""
    return WireError(
        f"{what}: wanted {wanted}, found {found!r:.80}; the connection is closed and made anew"
    )
