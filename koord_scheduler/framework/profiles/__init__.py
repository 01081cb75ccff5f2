"""Profiles: which plugins there are, and one instance of each that a profile enables."""
