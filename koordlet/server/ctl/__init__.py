"""The control socket: questions and commands of koordletctl, for the daemon's own user only."""
