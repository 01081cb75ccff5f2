"""What only a node agent decides; pure functions of wire types."""
