"""Containers of the DaemonSet's pod under runc.

containerd starts it the same way, but for the image: here it is this machine's Python and checkout.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.component import patched

from .ocispec import oci_spec
from .runc import Container, missing

ROOT = Path(__file__).parents[3]
DAEMONSET = ROOT / "deploy" / "daemonset.yaml"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

_numbers = itertools.count()


def pod_of(*components: str) -> dict[str, Any]:
    """The pod of the DaemonSet with these components."""
    daemonset = patched(yaml.safe_load(DAEMONSET.read_text()), *components)
    spec: dict[str, Any] = daemonset["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def pod() -> dict[str, Any]:
    """The pod of the DaemonSet, for a test to change."""
    return pod_of()


@pytest.fixture
def measure_only() -> dict[str, Any]:
    """The pod of the DaemonSet that can do nothing to the node."""
    return pod_of("measure-only")


@pytest.fixture
def contain(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Makes a container of a pod, for a Python command.

    The host's directories outside /sys are in tmp_path, as is the service account.
    """
    if lacking := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")
    containers: list[Container] = []
    host, account = tmp_path / "host", tmp_path / "account"
    account.mkdir()

    def contain(pod: dict[str, Any], *command: str, **environ: str) -> Container:
        number = next(_numbers)
        name = f"koordlet-runc-{os.getpid()}-{number}"
        spec = oci_spec(
            pod,
            [sys.executable, *command],
            environ=environ,
            host=host,
            files={str(ROOT): ROOT, SERVICE_ACCOUNT: account},
            cgroup=f"/{name}",
        )
        containers.append(Container(tmp_path / str(number), name, spec))
        return containers[-1]

    yield contain
    for container in containers:
        container.remove()
