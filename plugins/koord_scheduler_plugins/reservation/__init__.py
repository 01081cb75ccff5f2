"""Reservation: room on a node that is held for pods which do not exist yet."""
