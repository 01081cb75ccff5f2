"""The shared code of control plane daemons: the whole cluster, as the API server has it."""
