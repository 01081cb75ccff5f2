"""`make demo`: our descheduler and our scheduler bring a small cluster in memory to rest."""

import re
import shutil
import subprocess
import sys

import pytest

MOST = 120  # seconds


def test_the_demo_comes_to_rest() -> None:
    if shutil.which("go") is None:
        pytest.skip("needs Go to build the API server in memory")
    command = [sys.executable, "-m", "benchmarks.demo", f"--seconds={MOST}", "--port=29177"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=MOST + 60, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    evicted = re.findall(r"(\S+) was evicted from (worker-[12])\n", ran.stdout)
    bound = re.findall(r"(\S+) was bound to (\S+)\n", ran.stdout)
    assert evicted
    assert len(bound) == len(evicted)
    assert {node for _, node in bound}.isdisjoint({"worker-1", "worker-2", "worker-3"})
