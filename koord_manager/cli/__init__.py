"""The command koord-manager, and its commands beside the daemon."""
