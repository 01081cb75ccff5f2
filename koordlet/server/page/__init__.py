"""The agent's status page: history, pods, plugins, health, decisions."""
