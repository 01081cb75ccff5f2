"""NodeAffinity: pods choose nodes by labels and names, and prefer some of them.

Source: Kubernetes, plugins/nodeaffinity/node_affinity.go.
"""

from koord_scheduler_plugins.node_affinity.affinity import NodeAffinity

__all__ = ["NodeAffinity"]
