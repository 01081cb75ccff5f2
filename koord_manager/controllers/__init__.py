"""Controllers of the leader: resources of nodes, NodeMetrics, NodeSLOs."""
