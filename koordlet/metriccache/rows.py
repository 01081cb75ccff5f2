"""Maps series to the rows of a table."""

import heapq

from koordlet.metriccache.layout import SeriesKey


class Rows:
    """Rows by key. Low rows are given out first, so that columns stay short."""

    def __init__(self) -> None:
        self.by_key: dict[SeriesKey, int] = {}
        self.born: list[float] = []  # per row: boot time of the first sample of its series
        self._free: list[int] = []  # heap

    @property
    def height(self) -> int:
        """Rows ever given out; columns are that long."""
        return len(self.born)

    @property
    def free(self) -> int:
        """Rows below height that no series owns."""
        return len(self._free)

    def take(self, key: SeriesKey, born: float) -> int:
        if self._free:
            row = heapq.heappop(self._free)
        else:
            row = len(self.born)
            self.born.append(born)
        self.born[row] = born
        self.by_key[key] = row
        return row

    def release(self, key: SeriesKey) -> int:
        row = self.by_key.pop(key)
        heapq.heappush(self._free, row)
        return row

    def restore(self, found: dict[int, tuple[float, SeriesKey]]) -> None:
        """Start from the (born, key) of the rows in use that a file names."""
        self.born = [0.0] * (max(found, default=-1) + 1)
        for row, (born, key) in found.items():
            self.born[row] = born
            self.by_key[key] = row
        used = set(self.by_key.values())
        self._free = [row for row in range(self.height) if row not in used]
