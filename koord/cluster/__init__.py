"""The cluster as columns: what the control plane decides about many nodes and pods at once."""
