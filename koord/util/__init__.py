"""One general tool per module, without policy; knows nothing of Kubernetes or QoS."""
