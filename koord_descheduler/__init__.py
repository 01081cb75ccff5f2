"""koord-descheduler: moves pods off hot nodes, by what NodeMetrics report."""
