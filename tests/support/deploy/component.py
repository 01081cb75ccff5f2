"""Applies a kustomize component of ours to a manifest, for tests without kustomize.

tests/e2e compares it with what kustomize makes.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.support.kube.object_store import json_patch

DEPLOY = Path(__file__).parents[3] / "deploy"


def components() -> list[str]:
    """The components that patch manifests."""
    return sorted(path.parent.name for path in DEPLOY.glob("*/*.yaml") if _patches(path))


def patched(manifest: dict[str, Any], *names: str) -> dict[str, Any]:
    """The manifest with these components."""
    for name in names:
        for patch in _patches(DEPLOY / name / "kustomization.yaml"):
            target = {"kind": manifest["kind"], "name": manifest["metadata"]["name"]}
            if patch["target"] == target:
                manifest = json_patch(manifest, yaml.safe_load(patch["patch"]))
    return manifest


def _patches(path: Path) -> list[dict[str, Any]]:
    if path.name != "kustomization.yaml":
        return []
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text()).get("patches", [])
    return found
