"""Prediction: the peak that pods and the node will use, learnt from what they used.

So the report can say how much of what latency-sensitive pods asked for others may have. Reads the
metric cache and the states; keeps its models over restarts in files that Koordinator reads, too.
"""
