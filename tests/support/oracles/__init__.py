"""Kubernetes' rules in plain form, straight from JSON: the oracles of vector forms."""
