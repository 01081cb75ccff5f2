"""A metric cache on simulated time, and ways to fill it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from koord.util.clock import stamp
from koord.util.ownedfiles import OwnedDirectory
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence, Kind, RetentionClass, Sample
from koordlet.plugin.testing.scripted import SimulatedClock

INTERVALS = dict.fromkeys(Cadence, 1.0) | {Cadence.PSI: 10.0, Cadence.CPI: 60.0}
RETENTIONS = {RetentionClass.NODE: 1800.0, RetentionClass.POD: 300.0}
BOOT_ID = "5f1d8f6e-0000-4000-8000-000000000001"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def make_cache(clock: SimulatedClock) -> Iterator[Callable[..., MetricCache]]:
    """Open caches; they are closed when the test ends."""
    with ExitStack() as stack:

        def make(directory: Path | None = None, **options: Any) -> MetricCache:
            boot_id = options.pop("boot_id", BOOT_ID)
            options = {"intervals": INTERVALS, "retentions": RETENTIONS} | options
            place = directory and OwnedDirectory.open(directory.parent) / directory.name
            cache = MetricCache(place, boot_id, options.pop("clock", clock), **options)
            return stack.enter_context(closing(cache))

        yield make


@pytest.fixture
def cache(make_cache: Callable[..., MetricCache]) -> MetricCache:
    """A cache in memory."""
    return make_cache()


@pytest.fixture
def feed(clock: SimulatedClock) -> Callable[..., None]:
    """feed(cache, kind, values, key=(), every=1.0): one value per tick; None is a missed one."""

    def feed(
        cache: MetricCache,
        kind: Kind,
        values: list[float | None],
        key: tuple[str, ...] = (),
        every: float = 1.0,
    ) -> None:
        for value in values:
            clock.tick(every)
            if value is not None:
                cache.append(stamp(clock), [Sample(kind, value, key)])

    return feed
