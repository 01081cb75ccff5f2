"""What the leader keeps in the cluster: resources of nodes, NodeMetrics, NodeSLOs."""
