"""What koord-scheduler shows on its status page."""
