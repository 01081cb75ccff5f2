"""Helpers that tests share, by subject."""
