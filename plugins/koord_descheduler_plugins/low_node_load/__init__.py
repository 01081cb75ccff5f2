"""LowNodeLoad: moves pods from overutilized nodes to underutilized ones, by their NodeMetrics."""
