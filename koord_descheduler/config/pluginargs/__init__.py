"""The arguments of plugins: what pluginConfig may say, its defaults, and when it is refused."""
