"""Result of a round of a plugin."""

from dataclasses import dataclass

from koord.util.errors import error_text


@dataclass(frozen=True, slots=True)
class Status:
    """Result of one round; without an error it went well."""

    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.error is None

    def __str__(self) -> str:
        return "ok" if self.error is None else error_text(self.error)
