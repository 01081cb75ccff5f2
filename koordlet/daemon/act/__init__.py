"""Builds what acts: plugins, claims, evictions, the audit log, dry-run and explanations."""
