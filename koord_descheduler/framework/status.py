"""Result of a round of a plugin."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """Result of one round; without an error it went well."""

    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        """Whether it went well."""
        return self.error is None

    def __str__(self) -> str:
        return "ok" if self.error is None else str(self.error) or repr(self.error)
