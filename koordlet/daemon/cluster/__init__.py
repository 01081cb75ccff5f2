"""Builds what a daemon in a cluster has: clients, pods from the kubelet or the API server."""
