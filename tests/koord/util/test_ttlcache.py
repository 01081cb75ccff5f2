"""Values that hold for a while, in bounded number."""

import pytest

from koord.util.simulatedclock import SimulatedClock
from koord.util.ttlcache import TtlCache


def test_each_value_has_its_own_time():
    """It holds until then, and is forgotten afterwards."""
    clock = SimulatedClock()
    cache = TtlCache(clock, 10)
    cache.put("yes", 1, 30.0)
    cache.put("no", 0, 10.0)

    clock.tick(10)

    assert cache["yes"] == 1
    with pytest.raises(KeyError):
        cache["no"]
    assert len(cache) == 1


def test_the_least_recently_used_one_makes_room():
    """Whoever is asked for often stays, however many others come by."""
    cache = TtlCache(SimulatedClock(), 3)
    cache.put("kept", 0, 60.0)
    for number in range(100):
        cache.put(number, number, 60.0)
        assert cache["kept"] == 0

    assert len(cache) == 3
    assert cache[99] == 99
    with pytest.raises(KeyError):
        cache[97]


def test_a_value_may_be_renewed():
    """The last word and its time count."""
    clock = SimulatedClock()
    cache = TtlCache(clock, 10)
    cache.put("key", "old", 10.0)
    cache.put("key", "new", 30.0)

    clock.tick(20)

    assert cache["key"] == "new"
