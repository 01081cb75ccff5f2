"""What nodes offer and would offer, explained, without or beside a running manager."""
