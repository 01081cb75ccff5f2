"""Originals of changed kernel values, on disk: records, ledger, append-only files."""
