"""How the API server is reached: kubeconfig, service account, credentials, TLS."""
