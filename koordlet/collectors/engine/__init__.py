"""The sampling pass: schedule, kernel reads, collectors, and their outcomes."""
