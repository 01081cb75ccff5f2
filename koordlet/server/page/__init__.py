"""What the agent shows on its status page: history, pods, plugins, health, what was done."""
