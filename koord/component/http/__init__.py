"""The HTTP site of a daemon: sockets, TLS, token guard, limits, answers."""
