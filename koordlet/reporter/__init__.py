"""Reports the node's measurements and topology to the cluster.

A report carries the time of its samples; old samples never get a new time stamp. Reads the metric
cache and the states; the API server is reached through koord.kube alone.
"""
