"""The kubelet's pod-resources service with the devices that the scheduler has given to pods."""
