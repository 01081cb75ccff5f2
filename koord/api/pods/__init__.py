"""Pods: identity, requests, allocations and host access, by the rules of Kubernetes."""
