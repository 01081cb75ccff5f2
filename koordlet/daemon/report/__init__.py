"""Builds what reports: NodeMetric, topology, and the duties of a missing koord-manager."""
