"""The Prometheus text formats 0.0.4 and OpenMetrics 1.0, one metric family at a time.

prometheus_client writes them. It cannot write a counter whose name lacks `_total`, so such counters
go through it as what they are in OpenMetrics, unknown, and text 0.0.4 has their type corrected.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

_END = b"# EOF\n"
_WITH_CREATED = frozenset({"counter", "histogram", "summary"})


@dataclass(frozen=True)
class TextFormat:
    """One of the text formats."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""  # the last line of a page
    unsuffixed_counter: bytes = b"unknown"  # the type of a counter whose name lacks `_total`

    def encode(self, family: Metric, *, unsuffixed_counter: bool = False) -> bytes:
        """The lines of one family.

        Raises:
            Exception: whatever the content of the family leads to; a plugin may have made it.
        """
        text = self.write(_One(_plain(family, unsuffixed_counter))).removesuffix(self.end)
        if unsuffixed_counter:
            kind = b"# TYPE %b " % family.name.encode()
            text = text.replace(kind + b"untyped\n", kind + self.unsuffixed_counter + b"\n", 1)
        return text


class _One(Collector):
    """A registry for the library that holds one family alone."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _plain(family: Metric, unsuffixed_counter: bool) -> Metric:
    """The family without creation times, and of type unknown if it is an unsuffixed counter."""
    plain = Metric(family.name, family.documentation, family.type, family.unit)
    plain.samples = family.samples
    if unsuffixed_counter:
        plain.type = "unknown"
    elif family.type in _WITH_CREATED:
        created = f"{family.name}_created"
        plain.samples = [sample for sample in family.samples if sample.name != created]
    return plain


TEXT = TextFormat(
    "text/plain; version=0.0.4; charset=utf-8", generate_text, unsuffixed_counter=b"counter"
)
OPENMETRICS = TextFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", generate_openmetrics, _END
)
