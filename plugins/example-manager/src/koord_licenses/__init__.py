"""A resource of one's own on nodes, as an example of a plugin for koord-manager."""
