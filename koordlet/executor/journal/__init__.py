"""What was there before, on disk: records, ledger, append-only files."""
