"""Builds, wires, starts and stops the agent; holds no rule about QoS."""
