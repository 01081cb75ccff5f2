"""Batch and mid resources: what prod pods leave, and what they have requested in vain."""
