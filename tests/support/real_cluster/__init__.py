"""A whole Kubernetes cluster in a machine inside this one, and what tests do in it."""
