"""Settings before a container starts: answers what the container runtime asks over NRI."""
