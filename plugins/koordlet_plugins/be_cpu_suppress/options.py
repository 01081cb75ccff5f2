"""How often the node is looked at, as the flags say."""

from dataclasses import dataclass

from koordlet.plugin import Flag, FlagSet, OptionError

INTERVAL = "cpu-suppress-interval-seconds"
FAST = "be-suppress-fast-interval"
FASTEST = 0.05  # seconds; the kernel accounts for a running task once in 1 to 10 ms


@dataclass(frozen=True, kw_only=True, slots=True)
class SuppressOptions:
    """Times in seconds."""

    interval: float = 1.0  # between rounds; 0: the plugin does nothing, as in Koordinator
    fast: float = 0.1  # between looks at the counters; 0: there are none

    def __post_init__(self) -> None:
        if self.interval < 0:
            raise OptionError(f"--{INTERVAL}", self.interval, "use 1 or more, or 0 for never")
        if self.fast and self.fast < FASTEST:
            raise OptionError(f"--{FAST}", self.fast, f"use at least {FASTEST:g}s, or 0 for none")


class SuppressFlags:
    """The flags, whose values are there once the command line was read."""

    def __init__(self, flags: FlagSet) -> None:
        self._interval: Flag[int] = flags.int(
            INTERVAL, 1, "Seconds between two rounds of best-effort CPU suppression; 0: never"
        )
        self._fast: Flag[float] = flags.duration(
            FAST,
            0.1,
            "Time between two looks at CPU counters that make best-effort pods give way sooner "
            "than the next round; 0 for Koordinator's pace",
        )

    def options(self) -> SuppressOptions:
        """Return what they say.

        Raises:
            OptionError: a value cannot be used.
        """
        return SuppressOptions(interval=self._interval.value, fast=self._fast.value)
