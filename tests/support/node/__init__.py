"""A node's kernel: models of it, real cgroups, network namespaces and devices."""
