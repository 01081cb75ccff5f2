"""Acts for the plugins: claims on kernel values, and evictions.

A claim becomes a desired value, a plan, an applied value, and a restored one. An eviction is
checked against dry-run and the node's budget, and requested once. Both are recorded with their
reasons for `koordletctl explain`, and as audit events.
"""
