"""The kubelet of this node: its pods, its configuration, the agent's own pod."""
