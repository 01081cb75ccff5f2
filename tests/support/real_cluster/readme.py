"""The commands of README.md, "In a cluster", and how they are executed: word for word."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import HELM, KUBERNETES, REPOSITORY

SECONDS = 300.0  # of one command


@dataclass(frozen=True, slots=True)
class Commands:
    """The blocks of that section, by what they are for."""

    apply: str  # a kustomization.yaml of the user's
    install_release: str  # with Helm, in dry-run
    upgrade_release: str
    get: str
    execute: str
    forward: str
    delete: str
    uninstall_release: str


def commands() -> Commands:
    """Those of README.md as it is. The images are built and pushed beforehand."""
    section = (REPOSITORY / "README.md").read_text().split("\n## In a cluster\n")[1]
    found = re.findall(r"^```\n(.*?)^```$", section.split("\n## ")[0], re.DOTALL | re.MULTILINE)
    build, apply, helm, ask, remove = found
    assert build.startswith("podman build")
    return Commands(apply, *helm.splitlines(), *ask.splitlines(), *remove.splitlines())


def environ() -> dict[str, str]:
    """With kubectl and helm on PATH."""
    path = f"{KUBERNETES.binary.parent}:{HELM.binary.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


def shell(script: str, where: Path, given: str = "") -> str:
    """What a script prints; it ends at the first command that fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=where,
        env={**environ(), "PWD": str(where)},  # else bash takes the other name of the directory
        input=given, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
