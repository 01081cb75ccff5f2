"""koord-scheduler: places pods with the Kubernetes scheduling framework, over columns of nodes."""
