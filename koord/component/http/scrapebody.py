"""The body of one scrape while it is being put together."""

from collections.abc import Callable, Iterable

from prometheus_client import Metric

from koord.component.http.families import Failed, FamilyRules
from koord.component.http.textformat import TextFormat


class ScrapeBody:
    """Internal families, then external ones, each encoded as soon as it is made.

    Kept until the end, thousands of samples would grow old enough for the garbage collector to look
    through the whole heap, which holds up the event loop for tens of milliseconds.
    """

    def __init__(self, form: TextFormat, rules: FamilyRules, failed: Failed) -> None:
        self._form = form
        self._unsuffixed_counters = rules.unsuffixed_counters
        self._failed = failed
        self._names: set[str] = set()
        self._internal: list[bytes] = []
        self._external: list[bytes] = []

    def add(
        self, source: str, make: Callable[[], Iterable[Metric]], is_internal: Callable[[str], bool]
    ) -> None:
        """Add the families that make returns; all of them or, when it raises, none.

        A family that cannot be encoded, or whose name came before, is left out alone.
        """
        encoded: dict[str, bytes] = {}
        try:
            for family in make():
                self._encode(family, encoded)
        except Exception as err:  # one broken collector must not cost the scrape
            self._failed(source, err)
            return
        self._names |= encoded.keys()
        for name, text in encoded.items():
            (self._internal if is_internal(name) else self._external).append(text)

    def body(self, *, internal: bool = True, external: bool = True) -> bytes:
        """The whole, or only one of its two parts."""
        parts = self._internal * internal + self._external * external
        return b"".join([*parts, self._form.end])

    def _encode(self, family: Metric, encoded: dict[str, bytes]) -> None:
        name = family.name
        if name in self._names or name in encoded:
            self._failed(name, ValueError(f"metric family {name} is exported twice"))
            return
        try:
            unsuffixed = name in self._unsuffixed_counters
            encoded[name] = self._form.encode(family, unsuffixed_counter=unsuffixed)
        except Exception as err:  # whatever a plugin put into its family
            self._failed(name, err)
