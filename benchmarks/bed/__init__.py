"""The bed: an in-memory API server, and what is measured on it; see README.md."""
