"""Measured samples in bounded rings, and aggregates over their windows; never measures."""
