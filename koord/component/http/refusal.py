"""Why a client does not get what it asked for."""

from collections.abc import Mapping

from koord.util.errors import KoordError


class Refusal(KoordError):
    """Answers a request with a status and one sentence, in place of what was asked for."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
