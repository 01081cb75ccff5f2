"""Alerts on the three daemons: tables, from which Prometheus' rules and their page are written."""
