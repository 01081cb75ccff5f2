"""Ledger of evictions: what they were to bring, what they brought, and what follows from that."""
