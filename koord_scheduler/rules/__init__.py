"""What only a scheduler decides: pure rules."""
