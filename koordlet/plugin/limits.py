"""Limits on the time and memory of a plugin."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a plugin may take before it is stopped; its class overrides what does not fit."""

    round: float = 30.0  # seconds one turn of stop.every(...) may last
    silence: float = 600.0  # seconds a run that is in no round may go without doing anything
    grace: float = 5.0  # seconds run may take to return after the stop signal, then it is cancelled
    stop: float = 10.0  # seconds stop() may take
    memory: float = 32 * 2**20  # bytes the process may grow by while the plugin's own code runs


WAITS_FOR_EVENTS = Limits(silence=math.inf)  # for a run that only waits, for pods for example
