"""Traffic control of network interfaces: trees of HTB classes and the cgroup map."""
