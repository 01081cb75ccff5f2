"""Plugins for koord-scheduler: RoomyNodes and Seats."""
