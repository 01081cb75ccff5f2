"""koordlet: a per-node QoS daemon for Kubernetes."""

__version__ = "0.1.0"

NAME = "koordlet"  # of the daemon in logs, metric names, flags and requests
