"""Rules of Kubernetes over all nodes at once: pure functions from a pod and a view to a mask.

A pod that is in the view itself counts there as any other: remove it first, in a what-if.
"""
