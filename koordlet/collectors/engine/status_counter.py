"""Koordinator's counters of succeeded and failed rounds."""

from prometheus_client import Metric

from koordlet.collectors.engine.exposition import untyped


class StatusCounter:
    """A counter named as Koordinator names it, without _total, with the labels node and status."""

    def __init__(self, name: str, node: str) -> None:
        self._name = name
        self._node = node
        self._counts: dict[str, int] = {}

    def count(self, *, succeeded: bool) -> None:
        status = "succeeded" if succeeded else "failed"
        self._counts = {**self._counts, status: self._counts.get(status, 0) + 1}

    def family(self, text: str) -> Metric:
        rows = (((self._node, status), count) for status, count in self._counts.items())
        return untyped(self._name, text, ("node", "status"), rows)
