"""Serves metrics, health and decisions over HTTP and the control socket; never changes a node."""
