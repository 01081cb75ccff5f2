"""Configuration file and feature gates."""
