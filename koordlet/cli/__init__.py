"""The commands koordlet and koordletctl: arguments in, text out; never decides for the daemon."""
