"""Objects of this node from files and the API server: Node, NodeSLO, NodeMetric, topology."""
