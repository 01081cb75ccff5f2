"""The shipped QoS plugins, one module or package each.

They are found by entry points, as a third party's are, and import koordlet.plugin and koord.api
alone: neither the daemon nor each other.
"""
