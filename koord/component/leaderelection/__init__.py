"""Leader election on a Lease: of several replicas of a daemon one works at a time."""
