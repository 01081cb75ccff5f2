"""The decisions before the start: flags, config file, mode, and what may change later."""
