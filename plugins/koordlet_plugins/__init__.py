"""The shipped QoS plugins; they see koordlet.plugin and koord.api, never the daemon."""
