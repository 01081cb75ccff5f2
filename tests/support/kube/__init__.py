"""A scripted API server and kubelet, with faults on demand."""
