"""Flags of a daemon under test."""

import json
from pathlib import Path

from koordlet.host.paths import HostPaths

# The daemon on a host that is laid out in plain files. Flags alone make it refuse to write them.
LAID_OUT = str(Path(__file__).with_name("host_layout.py"))


def host_flags(roots: HostPaths) -> list[str]:
    """The directories of a fake host."""
    return [
        f"--cgroup-root-dir={roots.cgroup}",
        f"--proc-root-dir={roots.proc}",
        f"--sys-root-dir={roots.sys}",
        f"--sys-fs-root-dir={roots.sysfs}",
        f"--var-run-root-dir={roots.var_run}",
        f"--var-lib-kubelet-dir={roots.kubelet}",
    ]


def kubeconfig(server: str, token: str = "") -> str:
    """The text of a kubeconfig for a server, with a token if it wants one."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": server}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {"token": token} if token else {}}],
        }
    )
