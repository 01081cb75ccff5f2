"""Rules that only a node agent needs; pure functions of wire types."""
