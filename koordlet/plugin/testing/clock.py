"""Simulated time for tests of plugins."""

from koordlet.util.simulatedclock import SimulatedClock

__all__ = ["SimulatedClock"]
