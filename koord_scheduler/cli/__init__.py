"""The command koord-scheduler."""
