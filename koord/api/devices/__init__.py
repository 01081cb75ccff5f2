"""Devices of nodes and pods, and the rules by which one is given to the other."""
