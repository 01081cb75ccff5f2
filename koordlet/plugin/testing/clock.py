"""Simulated time for tests of plugins."""

from koord.util.simulatedclock import SimulatedClock

__all__ = ["SimulatedClock"]
