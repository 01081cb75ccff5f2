"""A cluster and an API server that tests make up, for plugins of the control plane."""
