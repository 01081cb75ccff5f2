"""ClusterColocationProfiles: what they do to a pod, as code and as policies of the API server."""
