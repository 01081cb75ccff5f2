"""koord-scheduler: places pods with the Kubernetes scheduling framework, over columns of nodes."""

__version__ = "0.1.0"

NAME = "koord-scheduler"  # of the daemon in logs, flags, events and requests
PREFIX = "scheduler"  # of the names of its metrics
