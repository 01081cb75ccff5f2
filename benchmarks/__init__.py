"""Benchmarks of koordlet: `python -m benchmarks`. API server and kubelet are those of the tests."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(_TESTS / name) for name in ("koord/kube", "e2e", "processes")]
