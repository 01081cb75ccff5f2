"""The sampling pass: when what is read, once, by whom, and how that went."""
