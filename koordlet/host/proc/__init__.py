"""Processes, namespaces, mounts and pressure from /proc."""
