"""What koord-manager does for a node's objects, done by the node where there is none."""
