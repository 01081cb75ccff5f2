"""Records what a node measured and did, and plays it back to the very same plugins."""
