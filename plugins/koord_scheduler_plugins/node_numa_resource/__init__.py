"""NodeNUMAResource: CPUs of their own for pods, and resources of NUMA nodes."""
