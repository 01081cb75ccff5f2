"""The status page of koord-scheduler."""
