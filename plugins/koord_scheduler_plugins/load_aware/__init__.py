"""LoadAwareScheduling: nodes by what really runs on them, as NodeMetrics say."""
