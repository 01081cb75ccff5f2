"""Nodes: the object, the machine below it, reservations, and the kubelet's CPU configuration."""
