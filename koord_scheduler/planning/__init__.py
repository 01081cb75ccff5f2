"""Where pods would go, and why: a pod, a list of pods, or a pod of a running scheduler."""
