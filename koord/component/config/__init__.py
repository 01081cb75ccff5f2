"""The config file of a daemon: read whole or rejected, and followed while the daemon runs."""
