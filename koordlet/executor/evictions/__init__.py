"""Ends pods: budget, permits, requests, backoff and kill."""
