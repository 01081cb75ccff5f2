"""Benchmarks of koordlet: `python -m benchmarks`. API server and kubelet are those of the tests."""
