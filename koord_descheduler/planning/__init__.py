"""Plans and explanations: one cycle in dry-run, and the decisions of past cycles, for people."""
