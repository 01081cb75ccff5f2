"""Manifests under test."""
