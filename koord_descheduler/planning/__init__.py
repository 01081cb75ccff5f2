"""What would be moved and why: one cycle in dry-run, and the decisions of cycles for people."""
