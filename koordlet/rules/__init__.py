"""Rules that only a node agent needs: CPU pools, batch resources, topology, node usage.

Pure functions of wire types (koord.api): no I/O, no clock, no state. Plugins see theirs through
koordlet.plugin.rules.
"""
