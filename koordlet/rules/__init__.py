"""Rules that only a node agent needs: CPU pools, topology, devices, duties of a missing manager.

Pure functions of wire types (koord.api): no I/O, no clock, no state. The rules of one plugin are in
its module.
"""
