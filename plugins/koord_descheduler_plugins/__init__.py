"""Shipped plugins of koord-descheduler, found by entry points exactly as a third party's."""
