"""Plugins of a daemon: how they are found and registered, and what their code costs."""
