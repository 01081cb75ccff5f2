"""The base of every daemon: flags, gates, health, supervised components, the HTTP site."""
