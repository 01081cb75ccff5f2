"""Errors about plugins themselves."""

from koord.util.errors import KoordError


class PluginError(KoordError):
    """A plugin cannot be registered or does not have the shape of one.

    feature is the name that it was to be registered under; empty: unknown, or no name.
    """

    def __init__(self, message: str, feature: object = "") -> None:
        super().__init__(message)
        self.feature = feature if isinstance(feature, str) else ""
