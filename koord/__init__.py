"""What the three daemons share: wire types, the API server's client, and the daemon base."""
