"""What koord-descheduler shows on its status page."""
