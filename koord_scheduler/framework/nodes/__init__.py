"""Looking at nodes: which are feasible for a pod, and which of them is the best."""
