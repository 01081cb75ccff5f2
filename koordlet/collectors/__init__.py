"""Turns kernel counters into samples, one module per collector; never opens files or retries."""
