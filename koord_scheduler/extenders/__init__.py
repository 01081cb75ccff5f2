"""HTTP extenders: services that are asked about the nodes of a pod."""
