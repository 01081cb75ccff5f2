"""What daemons of the control plane share: the whole cluster, kept as the API server has it."""
