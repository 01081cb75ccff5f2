"""NodeResourcesFit: nodes must have room for what a pod requests, and are scored by their use.

Source: Kubernetes, plugins/noderesources/fit.go.
"""

from koord_scheduler_plugins.node_resources_fit.fit import NodeResourcesFit

__all__ = ["NodeResourcesFit"]
