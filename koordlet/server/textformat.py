"""The Prometheus text formats 0.0.4 and OpenMetrics 1.0, one metric family at a time.

prometheus_client writes them. It cannot write a counter whose name lacks `_total`, so Koordinator's
counters go through it as what they are in OpenMetrics, unknown, and text 0.0.4 is told their type.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from koordlet.server.families import UPSTREAM_COUNTERS

_END = b"# EOF\n"
_WITH_CREATED = frozenset({"counter", "histogram", "summary"})


@dataclass(frozen=True)
class TextFormat:
    """One of the text formats."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""  # the last line of a page
    upstream_counter: bytes = b"unknown"  # what Koordinator's counters are called here

    def encode(self, family: Metric) -> bytes:
        """The lines of one family.

        Raises:
            Exception: whatever the content of the family leads to; a plugin may have made it.
        """
        text = self.write(_One(_plain(family))).removesuffix(self.end)
        if family.name in UPSTREAM_COUNTERS:
            comment = b"# TYPE %b " % family.name.encode()
            text = text.replace(comment + b"untyped\n", comment + self.upstream_counter + b"\n", 1)
        return text


class _One(Collector):
    """What the library takes for a registry: this family alone."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _plain(family: Metric) -> Metric:
    """The family without creation times, and Koordinator's counters as unknown."""
    plain = Metric(family.name, family.documentation, family.type, family.unit)
    plain.samples = family.samples
    if family.name in UPSTREAM_COUNTERS:
        plain.type = "unknown"
    elif family.type in _WITH_CREATED:
        created = f"{family.name}_created"
        plain.samples = [sample for sample in family.samples if sample.name != created]
    return plain


TEXT = TextFormat(
    "text/plain; version=0.0.4; charset=utf-8", generate_text, upstream_counter=b"counter"
)
OPENMETRICS = TextFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", generate_openmetrics, _END
)
