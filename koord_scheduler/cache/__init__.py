"""The cluster as the scheduler sees it: with its own decisions, which the API server confirms."""
