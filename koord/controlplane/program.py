"""What a daemon of the control plane is called."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """One daemon's names."""

    name: str  # in messages, events and requests
    prefix: str  # of its metrics
    version: str
