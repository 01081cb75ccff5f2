"""Clusters, plugins and replicas for tests of koord-descheduler."""
