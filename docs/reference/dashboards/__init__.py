"""Grafana dashboards on the three daemons: tables of panels, from which their JSON is written."""
