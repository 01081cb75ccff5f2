"""Applied values: the text of each claimed value when it was last seen in force."""

from dataclasses import dataclass, field

from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.desired import DesiredValue


@dataclass(slots=True)
class AppliedValues:
    """By value. Texts are those of koordlet.host.kerneltext."""

    # The latest of each claimed value.
    desired_values: dict[Key, DesiredValue] = field(default_factory=dict)
    in_force: dict[Key, str] = field(default_factory=dict)
    _rounded: dict[Key, tuple[str, str]] = field(default_factory=dict)

    def round(self, key: Key, written: str, made: str) -> None:
        """The kernel has made something else of what was written."""
        self._rounded[key] = (written, made)

    def is_of(self, key: Key, found: str, target: str) -> bool:
        """Whether a text is what comes of writing the target."""
        return found == target or self._rounded.get(key) == (target, found)

    def forget(self, key: Key) -> None:
        """The value is not in force any more."""
        self.in_force.pop(key, None)
        self._rounded.pop(key, None)
