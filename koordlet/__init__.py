"""koordlet: a per-node QoS daemon for Kubernetes."""

__version__ = "0.1.0"
