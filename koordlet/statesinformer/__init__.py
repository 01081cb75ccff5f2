"""The desired state of this node (Node, pods, NodeSLO) with callbacks; never measures or acts."""
