"""kubectl, as users run it, against the API server under test."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.support.programs import KUBERNETES

_SECONDS = 120.0


class Kubectl:
    """Runs it with a kubeconfig: one file, or several as KUBECONFIG names them."""

    def __init__(self, kubeconfig: str) -> None:
        self._environ = {**os.environ, "KUBECONFIG": kubeconfig}

    def run(self, *arguments: str, given: object = None) -> "subprocess.CompletedProcess[str]":
        """Run a command; given: an object for its standard input, as JSON."""
        return subprocess.run(
            [KUBERNETES.called("kubectl"), *arguments],
            input=json.dumps(given), env=self._environ, timeout=_SECONDS,
            capture_output=True, text=True,
        )  # fmt: skip

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Have these objects."""
        done = self.run("apply", "-f", "-", given=_list(objects))
        assert done.returncode == 0, done.stderr

    def delete(self, objects: Sequence[dict[str, Any]]) -> None:
        """Have none of these objects."""
        done = self.run("delete", "--ignore-not-found", "-f", "-", given=_list(objects))
        assert done.returncode == 0, done.stderr

    def problems(self, objects: Sequence[dict[str, Any]]) -> str:
        """What the API server has against these objects, unknown fields too; nothing is made."""
        command = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
        said = self.run(*command, given=_list(objects)).stderr.splitlines()
        return "\n".join(line for line in said if "(AlreadyExists)" not in line)


def _list(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
