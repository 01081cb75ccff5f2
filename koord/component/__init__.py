"""What every daemon has: flags, gates, health, supervised components, the HTTP site."""
