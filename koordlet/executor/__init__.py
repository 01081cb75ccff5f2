"""Acts for the plugins: everything they want changed goes through here, and is recorded.

So far that is evictions. Each is checked against dry-run and the node's budget, asked for once,
and kept with its reason for `koordletctl explain`.
"""
