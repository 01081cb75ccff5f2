"""Plugins of a daemon: discovery, registry, time limits, and the cost of their code."""
