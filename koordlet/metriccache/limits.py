"""Limits of a table: from intervals, retentions and bytes to columns and rows."""

import math
from dataclasses import dataclass, replace

from koordlet.metriccache.layout import HEADER_BYTES, STAMP_BYTES, Geometry, round_up

SPARE_COLUMNS = 4  # the sample before a window's first, both its ends, a tick that came early
_ROW_STEP = 16


@dataclass(frozen=True, slots=True)
class TableLimits:
    """The limits of one table."""

    interval: float  # seconds between columns
    retention: float  # seconds of history that readers ask for
    max_bytes: int  # of the whole ring

    @property
    def columns(self) -> int:
        return math.ceil(self.retention / self.interval) + SPARE_COLUMNS

    def with_retention(self, seconds: float) -> "TableLimits":
        return replace(self, retention=seconds)

    def max_rows(self, key_bytes: int) -> int:
        """Rows that fit with all columns."""
        per_row = Geometry(0, 1, key_bytes).entry_bytes + self.columns * 8
        return max((self._room - self.columns * STAMP_BYTES) // per_row, 1)

    def fit(self, rows: int, key_bytes: int, *, used: int) -> Geometry:
        """The largest geometry up to these rows and all columns.

        Rows in use are never given up: where they do not fit, there are fewer columns.
        """
        rows = max(min(rows, self.max_rows(key_bytes)), used)
        per_column = STAMP_BYTES + rows * 8
        entries = rows * Geometry(0, rows, key_bytes).entry_bytes
        columns = min(self.columns, max((self._room - entries) // per_column, 1))
        return Geometry(columns, rows, key_bytes)

    @property
    def _room(self) -> int:
        return self.max_bytes - HEADER_BYTES


def rows_ahead(needed: int) -> int:
    """Rows to make when that many are needed: an eighth more, so that growing is rare."""
    return needed if needed == 1 else round_up(needed + needed // 8, _ROW_STEP)


def key_bytes_ahead(needed: int) -> int:
    return round_up(max(needed, 1), 8)
