"""koord-descheduler: moves pods off hot nodes, by what NodeMetrics report."""

__version__ = "0.1.0"

NAME = "koord-descheduler"  # of the daemon in logs, flags, events and requests
PREFIX = "descheduler"  # of the names of its metrics
