"""What plugins get, what they return, and what the daemon makes of it."""
