"""resctrl: control groups of cache and memory bandwidth, and what they use."""
