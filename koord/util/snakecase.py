"""Names of classes as parts of metric and flag names."""

import re


def snake_case(name: str) -> str:
    """PressureWatch -> pressure_watch, CPUBurst -> cpu_burst, NetworkQoS -> network_qos."""
    name = name.replace("QoS", "Qos")  # one word
    words = re.sub(r"([A-Z]+)([A-Z][a-z])|([a-z0-9])([A-Z])", r"\1\3_\2\4", name)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
