"""The status page of koord-descheduler."""
