"""The Helm chart in deploy/chart, made from the kustomize tree in deploy."""
