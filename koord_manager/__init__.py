"""koord-manager: what a cluster offers to batch and mid pods, by what NodeMetrics report."""

__version__ = "0.1.0"

NAME = "koord-manager"  # of the daemon in logs, flags, events and requests
PREFIX = "slo_controller"  # of the names of its metrics
LEASE = "koordinator-manager"  # Koordinator's koord-manager has the same: one of the two works
