"""The plugin framework: inputs, results, and how the daemon combines them."""
