"""The scheduling framework: interfaces of plugins, and what runs them."""
