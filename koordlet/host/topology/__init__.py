"""CPUs, NUMA nodes, caches and local storage of the machine."""
