"""Processes that tests start as users do: the three daemons, Prometheus, chromium."""
