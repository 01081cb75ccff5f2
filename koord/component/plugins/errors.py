"""Errors about plugins themselves."""

from koord.util.errors import KoordError


class PluginError(KoordError):
    """A plugin cannot be registered or does not have the shape of one.

    name is the one that it was to be registered under; empty: unknown, or no name.
    """

    def __init__(self, message: str, name: object = "") -> None:
        super().__init__(message)
        self.name = name if isinstance(name, str) else ""


class PluginBlocked(BaseException):
    """Raised inside a plugin that holds the main thread; no Exception, so most `except` miss it."""
