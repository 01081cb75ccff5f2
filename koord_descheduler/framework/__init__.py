"""The plugin framework: interfaces, registry, profiles, limits, and the cycle that runs them."""
