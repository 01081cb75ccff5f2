"""Real container runtimes: containerd with runc, and the runtime's side of NRI."""
