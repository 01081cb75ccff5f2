"""Pure rules that only the scheduler uses."""
