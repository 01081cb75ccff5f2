"""A user's kustomization.yaml on top of what ships in deploy/."""

import os
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import REPOSITORY

DEPLOY = REPOSITORY / "deploy"


def overlay(directory: Path, *components: str, **fields: Any) -> Path:
    """Write it into a directory and return that; fields are any that kustomize knows."""
    shipped = os.path.relpath(DEPLOY, directory)
    wanted = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [shipped],
        "components": [f"{shipped}/{name}" for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted | fields))
    return directory
