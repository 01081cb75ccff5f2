"""Read access to the series of one kind."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from koord.util.clock import Stamp
from koordlet.metriccache.aggregate import Aggregate, Window
from koordlet.metriccache.layout import SeriesKey
from koordlet.metriccache.ring import Ring
from koordlet.metriccache.rows import Rows

_HALF_MILLISECOND = 0.0005  # windows include both ends, to the millisecond


@dataclass(frozen=True, slots=True)
class View:
    """Queries on a ring and its rows; all times are seconds since boot.

    A cell older than the birth of its row's series belongs to an earlier owner of the row, or to
    none, and is never shown.
    """

    ring: Ring
    rows: Rows
    interval: float  # seconds between columns as configured

    def last(self, key: SeriesKey, now: float) -> float | None:
        """Newest value of a series, None when it is older than two intervals."""
        column = self.newest_column(key, now - 2 * self.interval)
        return None if column is None else self.ring.cell(column, self.rows.by_key[key])

    def last_values(self, now: float) -> dict[SeriesKey, float]:
        """Newest value of each series that has one within two intervals."""
        ring, born = self.ring, self.rows.born
        values: dict[SeriesKey, float] = {}
        oldest = now - 2 * self.interval - _HALF_MILLISECOND
        for column in range(bisect_left(ring.boots, oldest), ring.count):
            cells, boot = ring.copy(column, column + 1), ring.boots[column]
            for key, row in self.rows.by_key.items():
                value = cells[row]
                if value == value and born[row] <= boot:
                    values[key] = value
        return values

    def newest(self, key: SeriesKey) -> Stamp | None:
        """Time of the newest sample of a series."""
        column = self.newest_column(key)
        return None if column is None else Stamp(self.ring.walls[column], self.ring.boots[column])

    def newest_column(self, key: SeriesKey, oldest: float = 0.0) -> int | None:
        """Column of the newest sample of a series, if that is not older than `oldest`."""
        row = self.rows.by_key.get(key)
        if row is None:
            return None
        oldest = max(oldest - _HALF_MILLISECOND, self.rows.born[row])
        for column in range(self.ring.count - 1, -1, -1):
            if self.ring.boots[column] < oldest:
                return None
            value = self.ring.cell(column, row)
            if value == value:
                return column
        return None

    def idle(self, since: float) -> list[SeriesKey]:
        """The series without a sample since then."""
        if self.ring.newest_boot < since:
            return list(self.rows.by_key)
        newest = self.ring.copy(self.ring.count - 1, self.ring.count)
        missing = [key for key, row in self.rows.by_key.items() if newest[row] != newest[row]]
        return [key for key in missing if self.newest_column(key, since) is None]

    def aggregate(self, key: SeriesKey, seconds: float, end: float) -> Aggregate | None:
        """Aggregate of one series over [end - seconds, end], None without a sample in it."""
        row = self.rows.by_key.get(key)
        span = self._span(seconds, end)
        if row is None or span is None:
            return None
        first, opens, closes = span
        window = Window(
            boots=self.ring.boots[first:closes],
            context=opens - first,
            cells=self.ring.copy_row(row, first, closes),
            stride=1,
            interval=self.interval,
        )
        return _aggregate(window, 0, self.rows.born[row])

    def aggregate_all(self, seconds: float, end: float) -> dict[SeriesKey, Aggregate]:
        """Aggregates of all series that have a sample in [end - seconds, end]."""
        span = self._span(seconds, end)
        if span is None:
            return {}
        first, opens, closes = span
        window = Window(
            boots=self.ring.boots[first:closes],
            context=opens - first,
            cells=self.ring.copy(first, closes),
            stride=self.ring.geometry.rows,
            interval=self.interval,
        )
        born = self.rows.born
        found = ((key, _aggregate(window, row, born[row])) for key, row in self.rows.by_key.items())
        return {key: aggregate for key, aggregate in found if aggregate}

    def _span(self, seconds: float, end: float) -> tuple[int, int, int] | None:
        """(first, opens, closes): columns opens to closes - 1 are in the window, None if none is.

        Columns from first on show when each series was seen last before the window, as far as
        weights depend on it.
        """
        boots = self.ring.boots
        opens = bisect_left(boots, end - seconds - _HALF_MILLISECOND)
        closes = bisect_right(boots, end + _HALF_MILLISECOND)
        if opens >= closes:
            return None
        near = bisect_left(boots, boots[opens] - 2 * self.interval, 0, opens)
        return min(near, max(opens - 1, 0)), opens, closes


def _aggregate(window: Window, row: int, born: float) -> Aggregate | None:
    aggregate = Aggregate(window, row, born)
    newest = window.cells[(len(window.boots) - 1) * window.stride + row]
    if (newest == newest and born <= window.boots[-1]) or aggregate.count:
        return aggregate
    return None
