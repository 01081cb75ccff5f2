"""Wire types of Kubernetes and Koordinator and the rules that come with them; never does I/O."""
