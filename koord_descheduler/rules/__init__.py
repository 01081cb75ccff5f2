"""What several plugins decide in the same way. Pure."""
