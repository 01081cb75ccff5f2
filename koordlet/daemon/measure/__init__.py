"""Builds what measures: the sampling pass, the cache, the sources of states."""
