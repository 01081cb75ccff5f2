"""The plugins of a profile behind a kube-scheduler, by the HTTP extender protocol."""
