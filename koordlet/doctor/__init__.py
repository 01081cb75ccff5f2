"""What this host supports and lacks, which gate needs it, and what would provide it."""
