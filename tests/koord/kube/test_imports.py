"""Modules are loaded on demand: the HTTP library costs 17 MiB, and not every process needs it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("koord.kube.errors", "aiohttp"),
        ("koord.kube.credentials", "aiohttp"),
        ("koord.kube.credentials", "yaml"),
        ("koord.kube.reflector", "yaml"),
        ("koordlet.plugin", "koord.kube"),
        ("koordlet.statesinformer.informer", "koord.kube"),
    ],
)
def test_light_modules_stay_light(module: str, unwanted: str) -> None:
    """Who asks for an error class or a path does not load the client."""
    code = f"import sys, {module}; sys.exit({unwanted!r} in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
