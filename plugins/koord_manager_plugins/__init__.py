"""Shipped plugins of koord-manager, found by entry points exactly as a third party's."""
