"""Clusters, plugins and replicas for tests of koord-scheduler."""
